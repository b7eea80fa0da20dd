"""What tests of data share: a cache of their own, and a count of the indices that are made."""

import pytest

from lingo.data import index as index_module


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of a test's own indices."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lingo" / "index"


@pytest.fixture
def measured(monkeypatch):
    """Grows whenever an index is made by reading the data."""
    calls, measure = [], index_module._measure
    monkeypatch.setattr(index_module, "_measure", lambda *a: calls.append(1) or measure(*a))
    return calls
