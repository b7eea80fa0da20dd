"""Convolutions of all kinds, against Keras, each other and slow NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest

from lingo import layers
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import apply
from lingo.layers.convolution import DepthwiseConv
from lingo.learner.state import initial_value

X = np.random.default_rng(0).normal(size=[2, 7, 10, 3]).astype(np.float32)
VOLUME = np.random.default_rng(0).normal(size=[2, 5, 4, 3, 2]).astype("f")
OVER_WINDOWS = pytest.mark.parametrize(
    ("kernel", "stride"), [((1, 1), 1), ((1, 1), 2), ((3, 3), 2), ((1, 7), 1), ((4, 3), 3)]
)
OVER_PADDING = pytest.mark.parametrize("padding", ["SAME", "VALID"])


def conv(**fields: Any) -> layers.Layer:
    return layers.Conv2D.params(dim=3, output_dim=5, **fields).build()


def assert_equals(layer, oracle, draw, x=X, *, names=("w", "b"), **call) -> None:
    """Compares a layer with Keras's, whose weights have these names here, in Keras's order."""
    weights = draw(layer)
    oracle.build(x.shape)
    oracle.set_weights([weights[name] for name in names if name in weights])
    y = apply(layer, weights, x, call=call)[0]
    np.testing.assert_allclose(y, oracle(x), rtol=1e-5, atol=1e-5)
    assert layer.output_shape(x.shape) == tuple(y.shape)


@OVER_PADDING
@OVER_WINDOWS
@pytest.mark.parametrize("use_bias", [False, True])
def test_equals_that_of_keras(kernel, stride, padding, use_bias, draw):
    layer = conv(kernel=kernel, stride=stride, padding=padding, use_bias=use_bias)
    oracle = keras.layers.Conv2D(5, kernel, stride, padding.lower(), use_bias=use_bias)
    assert_equals(layer, oracle, draw)


def centered(oracle: Any, kernel: tuple[int, int]) -> Any:
    """Returns Keras's layer after zeros of half a window, as PyTorch's padding=k // 2 adds them."""
    padding = keras.layers.ZeroPadding2D(tuple(k // 2 for k in kernel))
    return lambda x: oracle(padding(x))


@pytest.mark.parametrize("size", [(7, 10), (8, 9)])
@pytest.mark.parametrize(("kernel", "stride"), [((1, 1), 2), ((3, 3), 2), ((7, 5), 2), ((3, 1), 3)])
@pytest.mark.parametrize("depthwise", [False, True])
def test_centered_windows_are_those_of_half_a_window_of_zeros(
    size, kernel, stride, depthwise, draw
) -> None:
    fields: Any = {"kernel": kernel, "stride": stride, "padding": "CENTERED"}
    x = np.random.default_rng(0).normal(size=[2, *size, 3]).astype("f")
    if depthwise:
        layer = layers.DepthwiseConv2D.params(dim=3, **fields).build()
        oracle = keras.layers.DepthwiseConv2D(kernel, stride, use_bias=False)
    else:
        layer = conv(**fields)
        oracle = keras.layers.Conv2D(5, kernel, stride, use_bias=False)
    weights = draw(layer)
    oracle.build(x.shape)
    oracle.set_weights([weights["w"]])
    found, expected = ({} for _ in range(2))
    for results, compute in (
        (found, lambda x, w: apply(layer, {"w": w}, x)[0]),
        (expected, lambda x, w: centered(oracle, kernel)(x)),
    ):
        image = tf.constant(x)
        w = tf.constant(weights["w"]) if results is found else oracle.trainable_weights[0].value
        with tf.GradientTape() as tape:
            tape.watch([image, w])
            y = compute(image, w)
            loss = tf.reduce_sum(tf.sin(y))
        results["y"], results["gradients"] = y, tape.gradient(loss, [image, w])
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected
    )
    assert layer.output_shape(x.shape) == tuple(found["y"].shape)


@pytest.mark.parametrize("size", [(7, 9), (8, 9)])
def test_centered_windows_equal_those_of_same_unless_a_stride_meets_an_even_size(size, draw):
    x = np.random.default_rng(0).normal(size=[2, *size, 3]).astype("f")
    same, middle = (conv(stride=2, padding=padding) for padding in ("SAME", "CENTERED"))
    found = [apply(layer, draw(same), x)[0] for layer in (same, middle)]
    assert np.allclose(*found, atol=1e-5) == (size[0] % 2 == 1)


@pytest.mark.parametrize("cls", ["Conv2D", "DepthwiseConv2D", "MaxPool"])
def test_centered_windows_take_images_of_unknown_size(cls, draw) -> None:
    fields = {"window": (3, 3)} if cls == "MaxPool" else {"dim": 3}
    fields |= {"output_dim": 5} if cls == "Conv2D" else {}
    layer = getattr(layers, cls).params(stride=2, padding="CENTERED", **fields).build()
    weights = draw(layer)
    spec = tf.TensorSpec([None, None, None, 3], tf.float32)
    graph = tf.function(lambda x: apply(layer, weights, x)[0], [spec])
    for x in (X, X[:, :6]):
        np.testing.assert_allclose(graph(x), apply(layer, weights, x)[0], rtol=1e-5, atol=1e-5)


def test_centered_windows_have_a_middle() -> None:
    for fields in ({"kernel": (3, 2)}, {"kernel": (4, 4)}):
        with pytest.raises(ParamError, match=r"padding=CENTERED with a window of \(\d, \d\): "):
            conv(padding="CENTERED", **fields)
    with pytest.raises(ParamError, match="padding=CENTERED with a window of"):
        layers.Conv3D.params(dim=3, output_dim=5, padding="CENTERED").build()


@OVER_PADDING
def test_a_dilated_one_equals_that_of_keras(padding, draw):
    layer = conv(kernel=(3, 2), dilation=2, padding=padding)
    oracle = keras.layers.Conv2D(5, (3, 2), 1, padding.lower(), dilation_rate=2, use_bias=False)
    assert_equals(layer, oracle, draw)


@pytest.mark.parametrize("channels", [4, 15, 16])
def test_strides_of_single_positions_have_the_right_gradient_of_any_channels(channels):
    """With fewer than 16, oneDNN's gradient of the kernel writes to memory that is not its own."""
    x = np.random.default_rng(0).normal(size=[4, 64, 64, channels]).astype("f")
    layer = layers.Conv2D.params(dim=channels, output_dim=8, kernel=(1, 1), stride=2).build()
    w = tf.constant(np.random.default_rng(1).normal(size=[1, 1, channels, 8]), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.reduce_sum(tf.sin(apply(layer, {"w": w}, tf.constant(x))[0]))
    rows = x[:, ::2, ::2].reshape(-1, channels)
    expected = rows.T @ np.cos(rows @ w.numpy()[0, 0])
    np.testing.assert_allclose(tape.gradient(loss, w)[0, 0], expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_other_channels_than_dim_are_refused(kernel, draw):
    """TensorFlow would take six channels as two groups of three."""
    layer = conv(kernel=kernel)
    with pytest.raises(
        ParamError, match=r"dim=3, but the input has 6 channels, as \(2, 7, 10, 6\)"
    ):
        apply(layer, draw(layer), np.concatenate([X, X], axis=-1))


@pytest.mark.parametrize(("kernel", "operation"), [((1, 1), "MatMul"), ((1, 2), "Conv2D")])
def test_a_kernel_of_one_position_is_a_product_of_matrices(kernel, operation, draw):
    layer = conv(kernel=kernel, stride=2)
    weights = {name: tf.constant(value) for name, value in draw(layer).items()}
    function = tf.function(lambda x: apply(layer, weights, x)[0], autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([None, 7, None, 3])).graph
    products = {op.type for op in graph.get_operations()} & {"MatMul", "Conv2D"}
    assert products == {operation}
    np.testing.assert_allclose(function(X), apply(layer, weights, X)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_what_xla_compiles_convolves_to_the_same(stride, draw):
    layer = conv(kernel=(1, 1), stride=stride)
    weights, call = draw(layer), {"compiled": True}
    compute = tf.function(lambda x: apply(layer, weights, x, call=call)[0], jit_compile=True)
    graph = compute.get_concrete_function(tf.constant(X)).graph
    assert "Conv2D" in {op.type for op in graph.get_operations()}
    expected = apply(layer, weights, X)[0]
    np.testing.assert_allclose(compute(tf.constant(X)), expected, rtol=1e-5, atol=1e-5)


@OVER_PADDING
@OVER_WINDOWS
def test_output_shape_and_flops_are_those_of_the_call(kernel, stride, padding, draw, traced_flops):
    layer = conv(kernel=kernel, stride=stride, padding=padding)
    assert layer.output_shape(X.shape) == tuple(apply(layer, draw(layer), X)[0].shape)
    assert layer.flops(X.shape) == traced_flops(layer, X)


def test_an_image_smaller_than_the_window_is_refused() -> None:
    layer = conv(kernel=(3, 3), padding="VALID")
    assert layer.output_shape([1, 3, 3, 3]) == (1, 1, 1, 5)
    with pytest.raises(ParamError, match=r"\[3, 3\] does not fit into an image \[2, 9\]"):
        layer.output_shape([1, 2, 9, 3])


def windows(x, kernel, stride, before):
    """Returns what each window of padding SAME covers: {place: [B, kd, kh, kw, C]}."""
    padded = np.pad(x, [(0, 0), *[(n, 9) for n in before], (0, 0)])
    counts = [-(-size // stride) for size in x.shape[1:-1]]
    found = {}
    for place in itertools.product(*map(range, counts)):
        cuts = [slice(i * stride, i * stride + k) for i, k in zip(place, kernel, strict=True)]
        found[place] = padded[:, *cuts]
    return found


# a depth of 5 needs 2 zeros for windows of 3, one of them before; the others need none
@pytest.mark.parametrize(("kernel", "before"), [((3, 2, 1), (1, 0, 0)), ((1, 1, 1), (0, 0, 0))])
def test_a_convolution_of_volumes_sums_over_windows(kernel, before, draw) -> None:
    layer = layers.Conv3D.params(
        dim=2, output_dim=4, kernel=kernel, stride=2, use_bias=True
    ).build()
    weights = draw(layer)
    y = apply(layer, weights, VOLUME)[0]
    for place, window in windows(VOLUME, kernel, 2, before).items():
        expected = np.einsum("bijkc,ijkcf->bf", window, weights["w"]) + weights["b"]
        np.testing.assert_allclose(y[:, *place], expected, rtol=1e-4, atol=1e-5)
    assert y.shape == layer.output_shape(VOLUME.shape)


OVER_DILATED_WINDOWS = pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    [((3, 3), 1, 1), ((3, 3), 2, 1), ((4, 2), 1, 1), ((2, 4), 2, 1), ((1, 3), 1, 2)],
)


class OnMesh:
    """The rules of a mesh that splits nothing."""

    def activation(self, x: Any, axes: Any) -> Any:
        del axes
        return x

    weight = activation


@OVER_PADDING
@OVER_DILATED_WINDOWS
@pytest.mark.parametrize("rules", [None, OnMesh()], ids=["device", "mesh"])
@pytest.mark.parametrize(("multiplier", "use_bias"), [(1, False), (2, True)])
def test_a_depthwise_one_equals_that_of_keras(
    kernel, stride, dilation, padding, rules, multiplier, use_bias, draw
):
    layer = layers.DepthwiseConv2D.params(
        dim=3,
        multiplier=multiplier,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=padding,
        use_bias=use_bias,
    ).build()
    oracle = keras.layers.DepthwiseConv2D(
        kernel, stride, padding.lower(), multiplier, dilation_rate=dilation, use_bias=use_bias
    )
    assert_equals(layer, oracle, draw, rules=rules)


class DepthwiseConv1D(DepthwiseConv):
    kernel: int = 3
    rank = 1


@OVER_PADDING
def test_a_depthwise_one_of_another_rank_needs_no_more_than_its_rank(padding, draw) -> None:
    layer = DepthwiseConv1D.params(dim=3, multiplier=2, dilation=2, padding=padding).build()
    oracle = keras.layers.DepthwiseConv1D(3, 1, padding.lower(), 2, dilation_rate=2, use_bias=False)
    assert_equals(layer, oracle, draw, X[:, 0])


@OVER_PADDING
@OVER_DILATED_WINDOWS
def test_a_separable_one_equals_that_of_keras(kernel, stride, dilation, padding, draw):
    layer = layers.SeparableConv2D.params(
        dim=3,
        output_dim=5,
        multiplier=2,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=padding,
        use_bias=True,
    ).build()
    oracle = keras.layers.SeparableConv2D(
        5, kernel, stride, padding.lower(), dilation_rate=dilation, depth_multiplier=2
    )
    assert_equals(layer, oracle, draw, names=("depthwise/w", "pointwise/w", "pointwise/b"))


@pytest.mark.parametrize(("stride", "padding"), [(1, "SAME"), (2, "VALID")])
def test_flops_are_those_of_the_call(stride, padding, traced_flops) -> None:
    fields = {"dim": 3, "multiplier": 2, "stride": stride, "padding": padding}
    for layer in (
        layers.DepthwiseConv2D.params(**fields).build(),
        layers.SeparableConv2D.params(**fields, output_dim=5).build(),
    ):
        assert layer.flops(X.shape) == traced_flops(layer, X)


def test_a_separable_one_needs_fewer_operations_as_documented() -> None:
    shape = [1, 8, 8, 16]
    whole = layers.Conv2D.params(dim=16, output_dim=32, kernel=(3, 3)).build().flops(shape)
    apart = layers.SeparableConv2D.params(dim=16, output_dim=32).build().flops(shape)
    assert whole * (9 + 32) == apart * (9 * 32)


SMALL = np.random.default_rng(0).normal(size=[2, 4, 5, 3]).astype(np.float32)
OVER_ENLARGING_WINDOWS = pytest.mark.parametrize(
    ("kernel", "stride"), [((3, 3), 1), ((3, 3), 2), ((4, 2), 2), ((2, 5), 3), ((1, 1), 2)]
)


@OVER_PADDING
@OVER_ENLARGING_WINDOWS
@pytest.mark.parametrize("use_bias", [False, True])
def test_a_transposed_one_equals_that_of_keras(
    kernel, stride, padding, use_bias, draw, traced_flops
):
    layer = layers.TransposedConv2D.params(
        dim=3, output_dim=5, kernel=kernel, stride=stride, padding=padding, use_bias=use_bias
    ).build()
    weights = draw(layer)
    oracle = keras.layers.Conv2DTranspose(5, kernel, stride, padding.lower(), use_bias=use_bias)
    oracle.build(SMALL.shape)
    kernel_of_keras = np.swapaxes(weights["w"], 2, 3)
    oracle.set_weights([kernel_of_keras, weights["b"]] if use_bias else [kernel_of_keras])
    y = apply(layer, weights, SMALL)[0]
    np.testing.assert_allclose(y, oracle(SMALL), rtol=1e-5, atol=1e-5)
    assert layer.output_shape(SMALL.shape) == tuple(y.shape)
    assert layer.flops(SMALL.shape) == traced_flops(layer, SMALL)


@OVER_PADDING
def test_a_transposed_one_is_the_transpose_of_a_convolution(padding, draw) -> None:
    fields = {"kernel": (3, 2), "stride": 2, "padding": padding}
    layer = layers.TransposedConv2D.params(dim=3, output_dim=5, **fields).build()
    conv = layers.Conv2D.params(dim=5, output_dim=3, **fields).build()
    weights = draw(layer)
    y = apply(layer, weights, SMALL)[0]
    images = tf.constant(np.random.default_rng(1).normal(size=y.shape).astype(np.float32))
    there = apply(conv, {"w": np.swapaxes(weights["w"], 2, 3)}, images)[0]
    np.testing.assert_allclose(np.sum(images * y), np.sum(there * SMALL), rtol=1e-4)


def test_an_up_convolution_makes_a_window_of_each_position(draw) -> None:
    layer = layers.UpConv3D.params(dim=2, output_dim=3).build()
    w = draw(layer)["w"]
    y = apply(layer, {"w": w}, VOLUME)[0]
    assert y.shape == layer.output_shape(VOLUME.shape) == (2, 10, 8, 6, 3)
    for d, h, v in itertools.product(range(10), range(8), range(6)):
        expected = VOLUME[:, d // 2, h // 2, v // 2] @ w[d % 2, h % 2, v % 2]
        np.testing.assert_allclose(y[:, d, h, v], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("params", "size", "border", "rel"),
    [
        (layers.Conv2D.params(dim=32, output_dim=64, kernel=(3, 3)), 16, 1, 0.05),
        (layers.DepthwiseConv2D.params(dim=256), 16, 1, 0.1),
        (layers.SeparableConv2D.params(dim=256, output_dim=256), 16, 1, 0.1),
        *(
            (layers.TransposedConv2D.params(dim=64, output_dim=64, kernel=kernel), 12, 2, 0.1)
            for kernel in ((4, 4), (2, 2), (6, 2))
        ),
    ],
)
def test_initial_weights_keep_the_size_of_what_a_relu_lets_through(params, size, border, rel):
    layer = params.build()
    draw = np.random.default_rng(0).normal(size=[2, size, size, params.dim])
    x = np.maximum(draw, 0).astype(np.float32)
    weights = {name: initial_value(spec, 0) for name, spec in layer.weights().items()}
    inside = slice(border, -border)  # no padding, and nothing is cut off
    y = apply(layer, weights, x)[0][:, inside, inside]
    assert np.mean(np.square(y)) == pytest.approx(2 * np.mean(np.square(x)), rel=rel)


@pytest.mark.parametrize(
    ("params", "axes"),
    [
        (layers.Conv2D.params(output_dim=5, axes=("embed", "mlp")), ("embed", "mlp")),
        (layers.TransposedConv2D.params(output_dim=5, axes=("embed", "mlp")), ("embed", "mlp")),
        (layers.DepthwiseConv2D.params(axis="mlp"), ("mlp", None)),
    ],
)
def test_axes_are_those_of_the_channels(params, axes):
    specs = params.copy().set(dim=3, use_bias=True).build().weights()
    assert {name: spec.axes for name, spec in specs.items()} == {
        "w": (None, None, *axes),
        "b": ("mlp",),
    }
