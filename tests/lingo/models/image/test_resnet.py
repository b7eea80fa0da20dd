"""ResNet: published sizes, blocks against their formulas, a whole network against Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import BatchNorm, Chain, GroupNorm, Layer
from lingo.layers.context import apply
from lingo.learner.state import initial_value
from lingo.models import BasicBlock, BottleneckBlock
from lingo.models.image.resnet import resnet
from tests.conftest import graph_flops

NUM_WEIGHTS = {
    18: 11_689_512,
    34: 21_797_672,
    50: 25_557_032,
    101: 44_549_160,
    152: 60_192_808,
}
PUBLISHED_MULTIPLY_ADDS = {(34, "v1"): 3.664e9, (50, "v1"): 3.858e9, (50, "v1.5"): 4.089e9}
EPSILON = 1e-5


def model(*, num_classes: int = 1000, **fields: Any) -> Layer:
    return Chain.params(layers=resnet(num_classes=num_classes, **fields)).build()


def states(layer: Layer) -> dict[str, Any]:
    return {name: tf.constant(initial_value(spec, 0)) for name, spec in layer.states().items()}


@pytest.mark.parametrize("version", ["v1", "v1.5"])
@pytest.mark.parametrize("num_layers", NUM_WEIGHTS)
def test_the_number_of_weights_is_the_published_one(num_layers: int, version: str) -> None:
    built = model(num_layers=num_layers, version=version)
    assert sum(spec.size for spec in built.weights().values()) == NUM_WEIGHTS[num_layers]


@pytest.mark.parametrize(("num_layers", "version"), PUBLISHED_MULTIPLY_ADDS)
def test_the_operations_are_the_published_ones(num_layers: int, version: str) -> None:
    flops = model(num_layers=num_layers, version=version).flops([1, 224, 224, 3])
    published = PUBLISHED_MULTIPLY_ADDS[num_layers, version]
    assert flops == pytest.approx(2 * published, abs=2 * 0.0005e9)  # to its last digit


@pytest.mark.parametrize("num_layers", NUM_WEIGHTS)
def test_it_is_as_deep_as_it_is_called(num_layers: int) -> None:
    matrices = [name for name in model(num_layers=num_layers).weights() if name.endswith("/w")]
    assert len([name for name in matrices if "shortcut" not in name]) == num_layers


def test_an_imagenet_model_halves_the_image_five_times_before_the_mean() -> None:
    shape, seen = [2, 224, 224, 3], []
    for layer in model(num_layers=50).layers:
        shape = layer.output_shape(shape)
        seen.append(shape[1:])
    assert seen[:2] == [(112, 112, 64), (56, 56, 64)]
    assert seen[2:5] == [(56, 56, 256)] * 3
    assert seen[5:9] == [(28, 28, 512)] * 4
    assert seen[9:15] == [(14, 14, 1024)] * 6
    assert seen[15:18] == [(7, 7, 2048)] * 3
    assert shape == (2, 1000)


# ---- blocks -------------------------------------------------------------------------------------

X = np.random.default_rng(1).normal(size=[2, 5, 6, 8]).astype(np.float32)


def unit(weights: dict[str, Any], where: str, x: Any, stride: int = 1) -> Any:
    """Returns what a convolution and a normalization make of x, with the first statistics."""
    x = tf.nn.convolution(x, weights[f"{where}/conv/w"], strides=stride, padding="SAME")
    scale = weights[f"{where}/norm/gamma"] / np.sqrt(1 + EPSILON)
    return x * scale + weights[f"{where}/norm/beta"]


@pytest.mark.parametrize(
    ("params", "strides"),
    [
        (BasicBlock.params(output_dim=8), [1, 1]),
        (BasicBlock.params(output_dim=12, stride=2), [2, 1]),
        (BottleneckBlock.params(output_dim=8), [1, 1, 1]),
        (BottleneckBlock.params(output_dim=8, stride=2), [1, 2, 1]),
        (BottleneckBlock.params(output_dim=12, stride=2, version="v1"), [2, 1, 1]),
        (BottleneckBlock.params(output_dim=12, version="v1"), [1, 1, 1]),
    ],
)
def test_a_block_computes_its_formula(params, strides, draw) -> None:
    layer = params.build(dim=8)
    weights, y = draw(layer), X
    for i, stride in enumerate(strides):
        y = unit(weights, f"branch/{i}", tf.nn.relu(y) if i else y, stride)
    keeps_shape = params.output_dim == 8 and params.stride == 1
    assert ("shortcut/conv/w" in weights) is not keeps_shape
    shortcut = X if keeps_shape else unit(weights, "shortcut", X, params.stride)
    found = apply(layer, weights, X, call={"state": states(layer)})[0]
    np.testing.assert_allclose(found, tf.nn.relu(y + shortcut), rtol=1e-4, atol=1e-4)
    assert layer.output_shape(X.shape) == tuple(found.shape)


@pytest.mark.parametrize("block", [BasicBlock, BottleneckBlock])
@pytest.mark.parametrize("norm", [BatchNorm, GroupNorm.params(num_groups=2)])
def test_with_a_last_gamma_of_zeros_a_block_first_adds_nothing(block, norm) -> None:
    params = block.params(dim=8, output_dim=8, zero_init=True)
    params.unit.norm = norm
    layer = params.build()
    weights = {name: tf.constant(initial_value(s, 0)) for name, s in layer.weights().items()}
    assert sum(np.all(v == 0) for k, v in weights.items() if k.endswith("gamma")) == 1
    call = {"state": states(layer), "training": True}
    np.testing.assert_array_equal(apply(layer, weights, X, call=call)[0], np.maximum(X, 0))


def test_channels_are_multiples_of_the_width() -> None:
    narrow, wide = (
        model(num_layers=14, num_classes=5, small_images=True, stem_stride=2, width=width)
        for width in (4, 8)
    )
    for shape in ([1, 32, 32, 3], [1, 64, 48, 3]):
        sizes = []
        for built in (narrow, wide):
            seen = [tuple(shape)]
            for layer in built.layers[:-1]:
                seen.append(layer.output_shape(seen[-1]))
            sizes.append(seen[1:])
        assert [size[3] for size in sizes[0]] == [4, 16, 32, 64, 64]
        assert [(*size[:3], 2 * size[3]) for size in sizes[0]] == sizes[1]
        assert sizes[0][-1][1:3] == (shape[1] // 8, shape[2] // 8)


# ---- whole networks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({"small_images": True, "channels": 1}, (2, 8, 8, 1)),
        ({"num_layers": 14, "width": 4, "small_images": True, "stem_stride": 2}, (2, 9, 8, 3)),
        ({}, (2, 37, 40, 3)),
    ],
)
def test_shapes_and_flops_are_those_of_the_call(fields, shape, draw) -> None:
    built = model(**{"num_layers": 18, "num_classes": 5} | fields)
    weights, state = draw(built), states(built)
    call = tf.function(
        lambda x: apply(built, weights, x, call={"state": state})[0], autograph=False
    ).get_concrete_function(tf.TensorSpec(shape))
    assert tuple(call.structured_outputs.shape) == built.output_shape(shape) == (2, 5)
    assert built.flops(shape) == graph_flops(call.graph)


def copied(oracle: keras.Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns weights and states of a ResNet-50 as lingo's, by their paths."""
    weights, state = {}, {}

    def copy(ours: str, theirs: str) -> None:
        kernel, bias = oracle.get_layer(f"{theirs}_conv").get_weights()
        assert not bias.any()
        gamma, beta, mean, variance = oracle.get_layer(f"{theirs}_bn").get_weights()
        weights[f"{ours}/conv/w"] = kernel
        weights[f"{ours}/norm/gamma"], weights[f"{ours}/norm/beta"] = gamma, beta
        state[f"{ours}/norm/moving_mean"] = mean
        state[f"{ours}/norm/moving_mean_square"] = variance + mean**2

    copy("layers/0", "conv1")
    where = 2  # after the stem and its pooling
    for stage, num_blocks in enumerate((3, 4, 6, 3), 2):
        for i in range(num_blocks):
            block = f"conv{stage}_block{i + 1}"
            for step in range(3):
                copy(f"layers/{where}/branch/{step}", f"{block}_{step + 1}")
            if i == 0:
                copy(f"layers/{where}/shortcut", f"{block}_0")
            where += 1
    head = oracle.get_layer("predictions").get_weights()
    weights[f"layers/{where}/linear/w"], weights[f"layers/{where}/linear/b"] = head
    return weights, state


def test_resnet_50_computes_what_that_of_keras_does_with_its_weights() -> None:
    # at this size all images but the last have an odd height, for which padding is that of Keras
    images = np.random.default_rng(0).normal(size=[2, 33, 33, 3]).astype(np.float32)
    fields: Any = {"weights": None, "classes": 7, "classifier_activation": None}
    oracle = keras.applications.ResNet50(input_shape=(33, 33, 3), **fields)
    rng = np.random.default_rng(1)
    for norm in oracle.layers:
        if isinstance(norm, keras.layers.BatchNormalization):
            low, high = [0.5, -0.1, -0.1, 0.5], [1.5, 0.1, 0.1, 1.5]
            size = norm.moving_mean.shape
            norm.set_weights([rng.uniform(a, b, size) for a, b in zip(low, high, strict=True)])
    params = Chain.params(layers=resnet(num_layers=50, num_classes=7, version="v1"))
    params.all(BatchNorm).set(epsilon=1.001e-5)
    layer = params.build()
    weights, state = copied(oracle)
    assert weights.keys() == layer.weights().keys()
    found = apply(layer, weights, images, call={"state": state})[0]
    expected = oracle(images, training=False).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_a_number_of_layers_that_is_not_published_is_refused() -> None:
    with pytest.raises(ParamError, match="num_layers=20 is not one of 14, 18, 34, 50, 59, "):
        resnet(num_layers=20, num_classes=10)
