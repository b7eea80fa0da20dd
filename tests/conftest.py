"""What tests share: an experiment of each kind, weights for layers, a count of their products."""

from __future__ import annotations

import functools
import gc
import logging
import math
import os
import pathlib
import re
import signal
import tempfile
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config import experiment_index
from lingo.config.lazy import set_defaults, tf
from lingo.layers import context
from lingo.layers.layer import Layer
from tools.suite import selection, slow_list

set_defaults()  # of TensorFlow, as other files of tests import it, or Keras, before lingo does

GOLDENS = pathlib.Path(__file__).parent / "goldens"


def pytest_configure(config: pytest.Config) -> None:
    """Hides the user's own configuration, and restores the signals that `nohup` ignores."""
    folder = tempfile.TemporaryDirectory(prefix="lingo-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["XDG_CONFIG_HOME"] = folder.name  # also of fixtures that several tests share
    logging.getLogger("tensorflow").addFilter(_is_of_one_test)
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def _is_of_one_test(record: logging.LogRecord) -> bool:
    """Returns False for TensorFlow's count of retraced functions, which is over all tests."""
    return "triggered tf.function retracing" not in record.getMessage()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that tests/slow.txt and tests/promises.md list."""
    slow, promised = slow_list.read(), selection.promised_tests()
    for item in items:
        test = re.sub(r"@\w+$", "", item.nodeid)  # pytest-xdist appends the group
        if test in slow:
            item.add_marker(pytest.mark.slow)
        if selection.is_promised(test, promised):
            item.add_marker(pytest.mark.core)


def pytest_collection_finish() -> None:
    """Leaves what is imported out of garbage collections, which would look at it every time."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begins generators of a module anew: values of a test depend on no test that ran before it."""
    for generator in vars(item.module).values() if isinstance(item, pytest.Function) else ():
        if isinstance(generator, np.random.Generator):
            start = _STARTS.setdefault(id(generator), generator.bit_generator.state)
            generator.bit_generator.state = start


_STARTS: dict[int, Any] = {}
"""id of a generator -> its state after the import of its module."""


LARGE = {"image.amoebanet.amoebanet_b", "image.amoebanet.amoebanet_d"}
"""Experiments whose trace takes minutes and gigabytes: `digits_b`, `digits` have their layers."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Calls a test of a `kind_of_experiment`, or `kind_of_transformer`, with the name of each."""
    for fixture, is_meant in (
        ("kind_of_experiment", lambda name: True),
        ("kind_of_transformer", has_transformers),
    ):
        if fixture in metafunc.fixturenames:
            names = [*filter(is_meant, kinds_of_experiments())]
            metafunc.parametrize(fixture, names)


def has_transformers(name: str) -> bool:
    """Returns whether flags for parts of Transformers change an experiment."""
    return "TransformerLayer" in (GOLDENS / f"{name}.txt").read_text()


@functools.cache
def kinds_of_experiments() -> list[str]:
    """Returns names of experiments: all others but LARGE differ from one of these in numbers."""
    found: dict[frozenset[str], str] = {}
    for name in sorted(set(experiment_index.index().entries) - LARGE):
        lines = (GOLDENS / f"{name}.txt").read_text().splitlines()
        parameters = (line.partition("  # ")[0] for line in lines if " = " in line)
        found.setdefault(frozenset(re.sub(r"\d[\d.e+-]*", "0", p) for p in parameters), name)
    return list(found.values())


@pytest.fixture(autouse=True)
def _config_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test a configuration of the user's own, in which nothing is remembered yet."""
    folder = pathlib.Path(os.environ["XDG_CONFIG_HOME"], uuid.uuid4().hex)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))


@pytest.fixture
def draw() -> Callable[[Layer], dict[str, Any]]:
    """Draws every weight of a layer, also those that start as zeros or ones."""

    def draw(layer: Layer, seed: int = 0) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        return {
            where: tf.constant(rng.normal(0.0, 0.5, spec.program_shape).astype(np.float32))
            for where, spec in layer.weights().items()
        }

    return draw


@pytest.fixture
def traced_flops(draw: Callable[[Layer], dict[str, Any]]) -> Callable[..., int]:
    """Counts the operations of the matrix products in the traced graph of a call without loops."""

    def traced_flops(layer: Layer, x: Any, method: str = "__call__") -> int:
        weights = draw(layer)
        call = tf.function(
            lambda x: context.apply(layer, weights, x, method=method)[0], autograph=False
        )
        return graph_flops(call.get_concrete_function(x).graph)

    return traced_flops


def graph_flops(graph: Any) -> int:
    """Returns twice the multiply-adds of the matrix products in a graph."""
    return sum(2 * multiply_adds(op) for op in graph.get_operations())


def multiply_adds(op: Any) -> int:
    """Returns the multiply-adds of one operation, 0 if it is no matrix product."""
    if op.type == "Einsum":
        labels = re.split(r",|->", op.get_attr("equation").decode())
        sizes: dict[str, int] = {}
        for subscript, tensor in zip(labels, [*op.inputs, *op.outputs], strict=True):
            sizes |= dict(zip(subscript, tensor.shape, strict=True))
        return math.prod(sizes.values())
    if op.type in ("MatMul", "BatchMatMulV2"):
        transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        contracted = op.inputs[0].shape[-2 if transposed else -1]
        return math.prod(op.outputs[0].shape) * contracted
    match op.type:
        case "Conv2D":
            return math.prod(op.outputs[0].shape) * math.prod(op.inputs[1].shape[:3])
        case "Conv2DBackpropInput":  # a transposed convolution
            return math.prod(op.inputs[2].shape) * math.prod(op.inputs[1].shape[:3])
        case "DepthwiseConv2dNative":
            return math.prod(op.outputs[0].shape) * math.prod(op.inputs[1].shape[:2])
    return 0
