"""A small experiment on texts of its own, and the directory of its run."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

import pytest

from lingo.config.params import Params


@pytest.fixture
def small(experiment: Callable[..., Params], text: str) -> Callable[..., Params]:
    """Makes the experiment, of six steps or `max_steps`."""
    return functools.partial(experiment, text)


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "run"
