"""Tiny trained models of several kinds."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

import pytest

import lingo
from lingo.trainer.trained import Trained
from tests.lingo.export.models import small


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Returns a function that trains one of the experiments for a step, the first time."""

    @functools.cache
    def train(name: str) -> Trained:
        folder: pathlib.Path = tmp_path_factory.mktemp(name) / "run"
        lingo.train(small(name), folder)
        return lingo.load(folder)

    return train


@pytest.fixture(scope="session")
def saved(
    trained: Callable[[str], Trained], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], pathlib.Path]:
    """Returns a function that exports one of the models as a SavedModel, the first time."""

    @functools.cache
    def export(name: str) -> pathlib.Path:
        folder: pathlib.Path = tmp_path_factory.mktemp(name) / "saved"
        trained(name).export(folder, format="savedmodel")
        return folder

    return export
