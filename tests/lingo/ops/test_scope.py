"""Names of operations in gradients."""

from __future__ import annotations

from lingo.config.lazy import tf
from lingo.ops.scope import gradient_scope


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
