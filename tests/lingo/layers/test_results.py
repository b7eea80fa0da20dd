"""What a user's layer returns: a wrong shape is told with the layer's line, and both shapes."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import tensorflow as tf

from lingo.config.params import ParamError, Params
from lingo.layers import context
from lingo.layers.feed_forward import FeedForward
from lingo.layers.layer import Layer
from lingo.layers.norm import RmsNorm
from lingo.layers.stacks.stack import Chain, Stack


class Cut(Layer):
    """Returns the first features only."""

    size: int = 3  # how many

    def __call__(self, x: Any) -> Any:
        return x[..., : self.p.size]


class Says(Cut):
    """Says that it returns all features."""

    def __call__(self, x: Any) -> Any:
        return super().__call__(x)

    def output_shape(self, shape: Any) -> Any:
        return shape


class Splits(Layer):
    """Returns two tensors."""

    def __call__(self, x: Any) -> Any:
        return x, x[0]


class Forgets(Layer):
    """Has no `return`."""

    def __call__(self, x: Any) -> Any:
        tf.square(x)


class Adds(Layer):
    """Adds a vector of eight."""

    def __call__(self, x: Any) -> Any:
        return x + tf.ones([8])


class Doubles(FeedForward):
    """Twice a layer of lingo, by its own `__call__`, whose shape it keeps."""

    def __call__(self, x: Any, **inputs: Any) -> Any:
        return 2 * super().__call__(x, **inputs)


def run(params: Params) -> Any:
    """Returns the result of a layer for float32 [2, 4, 8], with weights of one."""
    layer = params.build()
    weights = {name: tf.ones(spec.program_shape) for name, spec in layer.weights().items()}
    return context.apply(layer, weights, tf.ones([2, 4, 8]))[0]


def line_of(cls: type[Layer]) -> str:
    code = inspect.unwrap(cls.__call__).__code__
    return re.escape(f"{__file__}:{code.co_firstlineno}")


@pytest.mark.parametrize(
    ("params", "cls", "message"),
    [
        (
            Stack.params(layer=Says),
            Says,
            r"layer: Says.__call__ returned \[2, 4, 3\] for an input of \[2, 4, 8\], but its"
            r" output_shape says \[2, 4, 8\]: correct one of them$",
        ),
        (Stack.params(layer=Forgets), Forgets, r"layer: Forgets.__call__ returned None: is a"),
        (
            Chain.params(layers=[Cut.params(), RmsNorm.params(dim=8)]),
            Cut,
            r"layers\[0\]: Cut.__call__ returned \[2, 4, 3\] for an input of \[2, 4, 8\], which"
            r" RmsNorm at layers\[1\] does not take: .*\[2,4,3\]",
        ),
        (
            Chain.params(layers=[Splits.params(), RmsNorm.params(dim=8)]),
            Splits,
            r"layers\[0\]: Splits.__call__ returned \(\[2, 4, 8\], \[4, 8\]\) for an input of \[2",
        ),
    ],
)
def test_a_wrong_result_is_told_with_line_and_shapes(params: Any, cls: Any, message: str) -> None:
    with pytest.raises(ParamError, match=f"^{line_of(cls)}: {message}"):
        tf.function(lambda: run(params), autograph=False)()


def test_if_the_users_code_fails_its_own_line_comes_first() -> None:
    params = Chain.params(layers=[Cut.params(), Adds.params()])
    file = re.escape(__file__)
    message = rf"layers\[1\]: .* \(before it, Cut \(layers\[0\], {line_of(Cut)}\) returned \[2, 4,"
    with pytest.raises(ParamError, match=rf"^{file}:\d+: {message}"):
        tf.function(lambda: run(params), autograph=False)()


class Classify(Layer):
    """A loss of class numbers."""

    def loss(self, labels: Any) -> Any:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.zeros([2, 3]))


def test_float_labels_are_told_with_the_line_of_the_loss() -> None:
    labels, layer = tf.zeros([2], tf.float64), Classify.params().build()
    message = r"^.*test_results\.py:\d+: Classify: labels are float64, but .*\.astype\(np\.int32\)"
    with pytest.raises(ParamError, match=message):
        tf.function(lambda: context.apply(layer, {}, labels, method="loss"), autograph=False)()


def test_results_of_a_right_shape_change_no_error() -> None:
    assert run(Doubles.params(dim=8)).shape == [2, 4, 8]
    with pytest.raises(ValueError, match="Dimensions must be equal") as caught:
        tf.function(lambda: run(RmsNorm.params(dim=3)), autograph=False)()
    assert not isinstance(caught.value, ParamError)


class Hides(Layer):
    """Uses a result of another shape itself."""

    inner: Layer = Cut

    def setup(self) -> None:
        self.inner = self.p.inner.build()

    def __call__(self, x: Any) -> Any:
        return x + tf.reduce_sum(self.inner(x))


def test_a_result_that_the_layer_around_it_uses_is_not_blamed() -> None:
    params = Chain.params(layers=[Hides.params(), RmsNorm.params(dim=3)])
    with pytest.raises(ValueError, match="Dimensions must be equal") as caught:
        tf.function(lambda: run(params), autograph=False)()
    assert "Cut" not in str(caught.value)


def test_a_size_that_is_unknown_may_be_any() -> None:
    layer = Says.params(size=8).build()
    spec = tf.TensorSpec([None, 4, 8])
    tf.function(lambda x: context.apply(layer, {}, x)[0]).get_concrete_function(spec)
