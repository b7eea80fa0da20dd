"""EfficientNet: published sizes, its blocks, a whole network against Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import Chain, Layer
from lingo.layers.context import apply
from lingo.learner.state import initial_value
from lingo.models import MBConv
from lingo.models.image.efficientnet import SCALINGS, Scaling, efficientnet, round_channels
from lingo.ops import random
from tests.conftest import graph_flops

NUM_WEIGHTS = {
    "b0": 5_288_548,
    "b1": 7_794_184,
    "b2": 9_109_994,
    "b3": 12_233_232,
    "b4": 19_341_616,
    "b5": 30_389_784,
    "b6": 43_040_704,
    "b7": 66_347_960,
}
X = np.random.default_rng(1).normal(size=[8, 5, 6, 8]).astype(np.float32)


def model(scaling: Scaling, *, num_classes: int = 1000, **fields: Any) -> Layer:
    layers = efficientnet(scaling, num_classes=num_classes, **fields)
    return Chain.params(layers=layers).build()


def states(layer: Layer) -> dict[str, Any]:
    return {name: tf.constant(initial_value(spec, 0)) for name, spec in layer.states().items()}


@pytest.mark.parametrize("name", NUM_WEIGHTS)
def test_the_number_of_weights_is_the_published_one(name: str) -> None:
    weights = model(SCALINGS[name]).weights()
    assert sum(spec.size for spec in weights.values()) == NUM_WEIGHTS[name]


@pytest.mark.parametrize(("name", "published"), [("b0", 0.39e9), ("b1", 0.70e9), ("b2", 1.0e9)])
def test_the_operations_are_those_of_the_paper(name: str, published: float) -> None:
    size = SCALINGS[name].image_size
    flops = model(SCALINGS[name]).flops([1, size, size, 3])
    assert flops == pytest.approx(2 * published, rel=0.02)  # it has two digits


def test_channels_are_rounded_to_multiples_of_8_and_lose_at_most_a_tenth() -> None:
    for width in (0.1, 0.25, 0.35, 1.0, 1.1, 1.4, 2.0):
        for channels in (16, 24, 40, 80, 112, 192, 320, 1280):
            rounded = round_channels(channels * width)
            assert rounded % 8 == 0
            assert rounded >= max(8, 0.9 * channels * width)
            assert rounded <= max(8, channels * width + 8)


def test_depth_rounds_the_number_of_blocks_up_and_their_drop_rate_grows() -> None:
    layers = efficientnet(Scaling(depth=1.1), num_classes=10)
    blocks = [layer for layer in layers if layer.cls is MBConv]
    dims = [block.output_dim for block in blocks]
    assert [dims.count(d) for d in (16, 24, 40, 80, 112, 192, 320)] == [2, 3, 3, 4, 4, 5, 2]
    rates = [block.drop_path_rate for block in blocks]
    np.testing.assert_allclose(rates, 0.2 * np.arange(23) / 23)


# ---- blocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("expansion", [1, 4])
def test_the_reduction_of_squeeze_and_excitation_is_counted_from_the_input(expansion) -> None:
    weights = MBConv.params(dim=8, output_dim=8, expansion=expansion).build().weights()
    assert weights["squeeze_excite/reduce/w"].shape == (8 * expansion, 2)
    assert ("expand/conv/w" in weights) is (expansion > 1)


def test_a_dropped_branch_leaves_the_input_of_an_example(draw) -> None:
    params = MBConv.params(dim=8, output_dim=8, drop_path_rate=0.5)
    layer, plain = params.build(), params.copy().set(drop_path_rate=0.0).build()
    weights = draw(layer)
    call = {"training": True, "key": random.root_key(1), "rows": tf.range(len(X))}
    y, whole = (apply(block, weights, X, call=call)[0].numpy() for block in (layer, plain))
    dropped = np.isclose(y, X).all((1, 2, 3))
    assert 0 < dropped.sum() < len(X)
    expected = np.where(dropped[:, None, None, None], X, X + 2 * (whole - X))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fields", [{"output_dim": 8, "stride": 2}, {"output_dim": 12}])
def test_a_block_that_changes_the_shape_is_never_dropped(fields, draw) -> None:
    params = MBConv.params(dim=8, drop_path_rate=0.5, **fields)
    layer, plain = params.build(), params.copy().set(drop_path_rate=0.0).build()
    weights, call = draw(layer), {"training": True}
    y = apply(layer, weights, X, call=call)[0]
    np.testing.assert_array_equal(y, apply(plain, weights, X, call=call)[0])
    assert layer.output_shape(X.shape) == tuple(y.shape)


# ---- whole networks -----------------------------------------------------------------------------


def test_shapes_and_flops_are_those_of_the_call(draw) -> None:
    built = model(Scaling(width=0.25), num_classes=5, channels=1)
    weights, state, shape = draw(built), states(built), (2, 32, 37, 1)
    call = tf.function(
        lambda x: apply(built, weights, x, call={"state": state})[0], autograph=False
    ).get_concrete_function(tf.TensorSpec(shape))
    assert tuple(call.structured_outputs.shape) == built.output_shape(shape) == (2, 5)
    assert built.flops(shape) == graph_flops(call.graph)


def copied(oracle: keras.Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns weights and states of Keras' B0 as lingo's, by their paths."""
    weights, state = {}, {}

    def copy(ours: str, conv: str, norm: str) -> None:
        (weights[f"{ours}/conv/w"],) = oracle.get_layer(conv).get_weights()
        gamma, beta, mean, variance = oracle.get_layer(norm).get_weights()
        weights[f"{ours}/norm/gamma"], weights[f"{ours}/norm/beta"] = gamma, beta
        state[f"{ours}/norm/moving_mean"] = mean
        state[f"{ours}/norm/moving_mean_square"] = variance + mean**2

    copy("layers/0", "stem_conv", "stem_bn")
    names = [f"block{i}{b}" for i, n in enumerate((1, 2, 2, 3, 3, 4, 1), 1) for b in "abcd"[:n]]
    for i, block in enumerate(names, 1):
        if i > 1:
            copy(f"layers/{i}/expand", f"{block}_expand_conv", f"{block}_expand_bn")
        copy(f"layers/{i}/depthwise", f"{block}_dwconv", f"{block}_bn")
        copy(f"layers/{i}/project", f"{block}_project_conv", f"{block}_project_bn")
        for part in ("reduce", "expand"):
            kernel, bias = oracle.get_layer(f"{block}_se_{part}").get_weights()
            weights[f"layers/{i}/squeeze_excite/{part}/w"] = kernel[0, 0]
            weights[f"layers/{i}/squeeze_excite/{part}/b"] = bias
    copy("layers/17", "top_conv", "top_bn")
    weights["layers/18/linear/w"], weights["layers/18/linear/b"] = oracle.get_layer(
        "predictions"
    ).get_weights()
    return weights, state


def test_b0_computes_what_that_of_keras_does_with_its_weights() -> None:
    images = np.random.default_rng(0).normal(size=[2, 64, 45, 3]).astype(np.float32)
    fields: Any = {"weights": None, "classes": 7, "classifier_activation": None}
    oracle = keras.applications.EfficientNetB0(input_shape=(64, 45, 3), **fields)
    rng = np.random.default_rng(1)
    for norm in oracle.layers:
        if isinstance(norm, keras.layers.BatchNormalization):
            low, high = [0.5, -0.1, -0.1, 0.5], [1.5, 0.1, 0.1, 1.5]
            size = norm.moving_mean.shape
            norm.set_weights([rng.uniform(a, b, size) for a, b in zip(low, high, strict=True)])
    layer = model(SCALINGS["b0"], num_classes=7)
    weights, state = copied(oracle)
    assert weights.keys() == layer.weights().keys()
    found = apply(layer, weights, images, call={"state": state})[0]
    expected = oracle(255 * images, training=False).numpy()  # it divides by 255
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
