"""Claims about the places that experiments and classes come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from lingo.config.params import ParamError
from lingo.config.roots import mount, roots


def test_a_directory_that_is_not_there_is_an_error_and_one_named_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (tmp_path / "none", "x" * 300):
        with pytest.raises(ParamError, match="is not a directory"):
            roots.find([name])
    assert roots.find([tmp_path, tmp_path]).params.count(tmp_path) == 1
    monkeypatch.setenv(roots.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ParamError, match="is not a directory"):
        roots.find()


@pytest.mark.parametrize(
    "module", ["os", "lingo.nope", "lingo..config", "lingo.config/params", "", "params.é"]
)
def test_what_is_no_module_of_the_roots_is_not_located(module: str) -> None:
    assert roots.locate(module, roots.find()) is None


def test_modules_are_located_without_importing() -> None:
    found = roots.locate("lingo.config.params", roots.find())
    assert found is not None
    assert roots.module_name(found, roots.find()) == "lingo.config.params"
    package = roots.locate("lingo.config", roots.find())
    assert package is not None
    assert package.name == "__init__.py"


def test_a_wheel_prefers_its_own_experiments_to_others_beside_it(tmp_path, monkeypatch):
    for name in ("params", "tasks", "lingo/_experiments/params", "lingo/_experiments/tasks"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(mount, "LINGO", str(tmp_path / "lingo"))
    assert roots.find().params[0] == tmp_path / "lingo/_experiments/params"
