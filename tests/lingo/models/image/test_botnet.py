"""BoTNet: the published number of weights, blocks against their formula, shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import Chain, ImageAttention
from lingo.layers.context import apply
from lingo.models import AttentionBlock
from lingo.models.image.botnet import botnet
from tests.conftest import graph_flops
from tests.lingo.models.image.test_resnet import EPSILON, states, unit

X = np.random.default_rng(1).normal(size=[2, 6, 5, 8]).astype(np.float32)


def model(*, num_classes: int = 1000, **fields: Any) -> Chain:
    return Chain.params(layers=botnet(num_layers=50, num_classes=num_classes, **fields)).build()


def test_botnet_50_has_its_published_number_of_weights() -> None:
    assert sum(spec.size for spec in model().weights().values()) == 20_852_008


@pytest.mark.parametrize(("stride", "image"), [(1, (14, 14)), (2, (7, 7))])
def test_the_last_stage_sees_the_whole_image(stride: int, image: tuple[int, int]) -> None:
    built = model(stride=stride)
    seen = [layer.p.image for layer in built.tree() if isinstance(layer, ImageAttention)]
    assert seen == [(14, 14), image, image]
    assert built.output_shape([2, 224, 224, 3]) == (2, 1000)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_computes_its_formula(stride: int, draw) -> None:
    params = AttentionBlock.params(dim=8, output_dim=16, stride=stride, image=(6, 5))
    layer = params.build()
    weights = draw(layer)
    inner = ImageAttention.params(dim=4, output_dim=4, image=(6, 5)).build()
    prefix = "branch/1/attention/"
    own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    y = apply(inner, own, tf.nn.relu(unit(weights, "branch/0", X)))[0]
    if stride == 2:
        y = tf.nn.avg_pool2d(y, 2, 2, "SAME")
    scale = weights["branch/1/norm/gamma"] / np.sqrt(1 + EPSILON)
    y = tf.nn.relu(y * scale + weights["branch/1/norm/beta"])
    y = unit(weights, "branch/2", y) + unit(weights, "shortcut", X, stride)
    found = apply(layer, weights, X, call={"state": states(layer)})[0]
    np.testing.assert_allclose(found, tf.nn.relu(y), rtol=1e-4, atol=1e-4)
    assert layer.output_shape(X.shape) == tuple(found.shape)


def test_with_version_v1_the_attention_sees_the_smaller_image() -> None:
    params = AttentionBlock.params(dim=8, output_dim=16, stride=2, version="v1", image=(3, 3))
    assert params.build().output_shape(X.shape) == (2, 3, 3, 16)
    with pytest.raises(ParamError, match=r"images of \(3, 3\), but the layer has image=\(6, 5\)"):
        params.set(image=(6, 5)).build().output_shape(X.shape)


def test_blocks_first_add_nothing() -> None:
    gammas = [
        spec.init.p.value
        for name, spec in model().weights().items()
        if name.endswith("branch/2/norm/gamma")
    ]
    assert gammas == [0.0] * 16


def test_shapes_and_flops_of_a_network_are_those_of_the_call(draw) -> None:
    built, shape = model(num_classes=5, image_shape=(8, 9, 1), small_images=True), (2, 8, 9, 1)
    weights, state = draw(built), states(built)
    call = tf.function(
        lambda x: apply(built, weights, x, call={"state": state})[0], autograph=False
    ).get_concrete_function(tf.TensorSpec(shape))
    assert tuple(call.structured_outputs.shape) == built.output_shape(shape) == (2, 5)
    assert built.flops(shape) == graph_flops(call.graph)


def test_a_resnet_without_bottlenecks_is_refused() -> None:
    with pytest.raises(
        ParamError, match=r"num_layers=34 has no bottlenecks: take one of \[14, 50, 59, 77, 101"
    ):
        botnet(num_layers=34, num_classes=10)


@pytest.mark.parametrize(
    ("num_layers", "size", "expected"),
    [
        (59, 224, 29_549_096),
        (77, 320, 46_965_800),
        (110, 224, 48_541_224),
        (128, 256, 65_933_352),
    ],
)
def test_botnet_s1_has_the_published_operations(num_layers: int, size: int, expected: int) -> None:
    """Published are 7.3 and 10.9 billion multiply-adds of 59 and 110 layers."""
    layers = botnet(num_layers=num_layers, num_classes=1000, stride=1, image_shape=(size, size, 3))
    built = Chain.params(layers=layers).build()
    assert sum(spec.size for spec in built.weights().values()) == expected
    published = {59: 7.3, 110: 10.9}
    if num_layers in published:
        flops = built.flops((1, size, size, 3))
        assert flops == pytest.approx(2e9 * published[num_layers], rel=0.01)


def test_chosen_blocks_attend_and_the_others_convolve() -> None:
    built = model(attending=(1, 2), positions="absolute")
    attends = [isinstance(layer, AttentionBlock) for layer in built.layers]
    assert attends == [False] * 16 + [True, True, False]  # 2 of the stem, 14 blocks; the head
    seen = [layer.p for layer in built.tree() if isinstance(layer, ImageAttention)]
    assert [(p.image, p.positions) for p in seen] == [((7, 7), "absolute")] * 2
    with pytest.raises(ParamError, match="attending has 3, but the last stage has 3 blocks"):
        botnet(num_layers=50, num_classes=1, attending=(0, 3))
