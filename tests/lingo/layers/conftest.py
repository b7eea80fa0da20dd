"""Graphs are computed as they are traced, as in every program of lingo."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from lingo.config.lazy import tf
from tests.lingo.runtimes.child import QUICK_TO_COMPILE

for name, value in QUICK_TO_COMPILE.items():
    os.environ.setdefault(name, value)


@pytest.fixture(scope="session", autouse=True)
def _without_graph_optimizers() -> None:
    """For small graphs Grappler takes longer than all else; `LocalProgram` has it off, too."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture
def with_weights(draw: Callable) -> Callable:
    """Returns a layer with weights that are drawn for it."""
    return lambda layer: (layer, draw(layer))
