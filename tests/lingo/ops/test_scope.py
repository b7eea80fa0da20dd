"""Names of operations in gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lingo.config.lazy import tf
from lingo.ops.scope import gradient_scope, on_device, on_device_of_inputs


def test_a_gradient_stands_where_tensorflow_puts_its_own() -> None:
    @tf.custom_gradient
    def double(x):
        scope = gradient_scope()

        def backward(gradient):
            with tf.name_scope(scope):
                return tf.multiply(gradient, 2.0, name="mine")

        return 2.0 * x, backward

    with tf.Graph().as_default() as graph:
        x = tf.constant(1.0)
        with tf.GradientTape() as tape, tf.name_scope("a"), tf.name_scope("b"):
            tape.watch(x)
            y = double(x)
        tape.gradient(y, x)
    assert "gradient_tape/a/b/mine" in [op.name for op in graph.get_operations()]


def test_outside_of_all_scopes_there_is_one_still() -> None:
    with tf.Graph().as_default():
        assert gradient_scope() == "gradient_tape/"


FIRST, SECOND = "/device:CPU:0", "/device:CPU:1"


def device(function: Callable[[], tf.Tensor]) -> str:
    """Returns the device that a graph asks for, for what a function returns."""
    with tf.Graph().as_default():
        return function().op.device


def at(name: str, *shape: int) -> tf.Tensor:
    with tf.device(name):
        return tf.ones(shape)


def test_on_a_device_and_on_none() -> None:
    def inside(name: str | None) -> tf.Tensor:
        with tf.device(FIRST), on_device(name):
            return tf.constant(1.0)

    assert device(lambda: inside(SECOND)) == SECOND
    assert device(lambda: inside(None)) == FIRST


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (lambda: tf.sqrt(at(SECOND, 3)), SECOND),
        (lambda: at(FIRST) * at(SECOND, 3), SECOND),
        (lambda: at(SECOND, 3) * at(FIRST), SECOND),
        (lambda: at(FIRST, 3) + at(SECOND, 3), FIRST),
        (lambda: at(SECOND, 3) + at(FIRST, 3), FIRST),
        (lambda: at(SECOND, 3) + at(SECOND, 3) * at(SECOND), SECOND),
        (lambda: tf.sqrt(tf.sqrt(at(SECOND, 3))), SECOND),
        (lambda: tf.sqrt(tf.constant(1.0)), ""),
        (lambda: tf.constant(1.0), ""),
    ],
)
def test_an_operation_stands_beside_its_largest_input(made, wanted):
    def inside() -> tf.Tensor:
        with on_device_of_inputs(FIRST):
            return made()

    assert device(inside) == wanted


def test_what_is_told_where_to_stand_does() -> None:
    def inside() -> tf.Tensor:
        with on_device_of_inputs(FIRST), tf.device(FIRST):
            return tf.sqrt(at(SECOND, 3))

    assert device(inside) == FIRST


def test_behind_it_nothing_stands_beside_its_inputs() -> None:
    def behind() -> Any:
        with on_device_of_inputs(FIRST):
            value = tf.sqrt(at(SECOND, 3))
        return tf.sqrt(value)

    assert device(behind) == ""
