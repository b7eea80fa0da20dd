"""Which tensors the gradient of others does not reach."""

import pytest

from lingo.config.lazy import tf
from lingo.layers.wrap.remat import recompute
from lingo.ops.differentiable import find_disconnected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, y: x + y, set()),
        (lambda x, y: x, {"y"}),
        (lambda x, y: {"a": [x, None, 3], "b": x}, {"y"}),
        (lambda x, y: x * tf.stop_gradient(y), {"y"}),
        (lambda x, y: tf.stop_gradient(x) * y + x, set()),
        (lambda x, y: tf.cond(x > 0, lambda: x, lambda: x + 1), {"y"}),
        (lambda x, y: tf.while_loop(lambda i: i < 3, lambda i: i + y, [x]), set()),
        (lambda x, y: recompute(lambda x, y: 2 * x, x, y), {"y"}),
        (lambda x, y: recompute(lambda x, y: x * y, x, y), set()),
    ],
)
def test_only_inputs_that_an_output_depends_on_are_connected(function, expected):
    found = []

    @tf.function(autograph=False)
    def trace(x, y):
        found.append(find_disconnected(function(x, y), {"x": x, "y": y}))

    trace(tf.constant(1.0), tf.constant(2.0))
    assert found == [expected]
