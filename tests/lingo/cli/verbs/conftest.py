"""What tests of verbs share: a directory of experiments, and a command line in this process."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import NamedTuple

import pytest

from lingo.cli.main import main

TOY = '''"""Toy experiments."""

from __future__ import annotations

import numpy as np

from lingo.config.registry import experiment
from lingo.data.input import Input
from lingo.layers.layer import Layer
from lingo.layers.stacks.stack import Stack
from lingo.optim.sgd import Sgd
from lingo.contract import Experiment
from lingo.learner.task import Task


class ToyLayer(Layer):
    """A layer that multiplies."""

    dim: int = 2  # width of input and output
    rate: float = 0.0  # does nothing

    def setup(self):
        self.w = self.weight("w", [self.p.dim, self.p.dim], axes=("embed", "mlp"))


class ToyInput(Input):
    """Ones."""


class ToyTask(Task):
    """Learns nothing."""

    stack: Stack  # the layers

    def setup(self):
        self.stack = self.p.stack.build(dim=3)


@experiment
def narrow(num_layers: int = 2):
    """Two layers of width 3.

    And more.
    """
    return Experiment.params(
        task=ToyTask.params(stack=Stack.params(layer=ToyLayer, num_layers=num_layers)),
        train_input=ToyInput.params(batch_size=1),
        optimizer=Sgd.params(learning_rate=0.5),
    )


@experiment
def deep():
    """Four layers."""
    return narrow(num_layers=4)
'''


SMALL = """
from lingo.config.registry import experiment
from lingo.data.record_source import InstalledSource
from lingo.data.document_input import TextInput
from params.lm.source import tiny


@experiment
def small(num_heads: int = 1):
    params = tiny(model_dim=16, num_layers=1)
    params.task.model.stack.layer.attention.num_heads = num_heads
    params.train_input = TextInput.params(
        source=InstalledSource.params(package="absl"), batch_size=4, length=16
    )
    held = params.train_input.copy().set(shuffle=False, repeat=False, max_batches=2)
    params.eval_inputs = {"first": held, "second": held.copy()}
    return params
"""


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory of experiments, `toys.narrow` and `toys.deep`; once, like the modules in it."""
    folder = tmp_path_factory.mktemp("experiments")
    (folder / "toys.py").write_text(TOY)
    return folder


@pytest.fixture
def lingo(toys, tmp_path, monkeypatch, capsys) -> Callable[..., Result]:
    """Runs a command line that knows the toys in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LINGO_PARAMS", str(toys))

    def lingo(*arguments: str) -> Result:
        capsys.readouterr()
        code = main(arguments)
        return Result(code, *capsys.readouterr())

    return lingo


@pytest.fixture(scope="module")
def exp(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An experiment in a file of its own, as `--exp` takes it."""
    file = tmp_path_factory.mktemp("own") / "small.py"
    file.write_text(SMALL)
    return f"{file}:small(num_heads=2)"


@pytest.fixture(scope="module")
def run(exp: str, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run that has done two steps."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    command = ["train", f"--exp={exp}", f"--logdir={folder}", "--set=max_steps=2"]
    assert main([*command, "--set=optimizer.learning_rate=0.5"]) == 0
    return folder
