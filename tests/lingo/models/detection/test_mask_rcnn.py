"""Mask R-CNN's networks: published sizes and anchors, maps of any network, heads' formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import BatchNorm, Conv2D, ConvNorm, ImageHead
from lingo.layers.context import apply
from lingo.models import Backbone, BoxHead, FeaturePyramid, MaskHead, MaskRcnn, RegionHead
from lingo.models.image.botnet import botnet
from lingo.models.image.efficientnet import SCALINGS, efficientnet
from lingo.models.image.resnet import resnet

DRAW = np.random.default_rng(0)


def r50() -> list[Any]:
    return resnet(num_layers=50, num_classes=1)[:-1]


def network(layers: Any, *, num_classes: int, shape: tuple[int, int, int]) -> MaskRcnn:
    params = MaskRcnn.params(trunk=Backbone.params(layers=layers))
    return params.build(image_shape=shape, num_classes=num_classes)


def part_sizes(layer: Any) -> dict[str, int]:
    """Returns the weights of each part, without those of batch norms."""
    sizes: dict[str, int] = {}
    for name, spec in layer.weights().items():
        if name.split("/")[-1] not in ("gamma", "beta"):
            part = name.split("/")[0]
            sizes[part] = sizes.get(part, 0) + spec.size
    return sizes


def test_with_resnet_50_it_has_the_published_number_of_weights() -> None:
    """Torchvision publishes 44.4 million for 91 classes, the background included."""
    model = network(r50(), num_classes=90, shape=(1024, 1024, 3))
    sizes = part_sizes(model)
    assert sizes == {
        "trunk": 23_454_912,
        "pyramid": 3_344_384,
        "region_head": 593_935,
        "box_head": 14_362_055,
        "mask_head": 2_646_107,
    }
    assert sum(sizes.values()) == 44_401_393
    assert sum(spec.size for spec in model.weights().values()) == 44_401_393 + 53_120
    fewer = network(r50(), num_classes=80, shape=(1024, 1024, 3))
    assert sum(part_sizes(fewer).values()) == 44_347_573


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [(1024, 1, 39_780_337), (512, 1, 39_731_185), (1024, 2, 39_747_569)],
)
def test_with_botnet_50_it_has_other_weights(size: int, stride: int, expected: int) -> None:
    """All three blocks attend to 64 or 32 rows, or the first to 64 and the others to 32."""
    layers = botnet(num_layers=50, num_classes=1, stride=stride, image_shape=(size, size, 3))[:-1]
    if stride == 1:  # the pyramid needs maps of four levels: only the trunk is counted
        trunk = sum(part_sizes(Backbone.params(layers=layers).build()).values())
        found = trunk + 44_401_393 - 23_454_912
    else:
        found = sum(part_sizes(network(layers, num_classes=90, shape=(size, size, 3))).values())
    assert found == expected


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ((800, 1344), 268_569),
        ((800, 1333), 267_069),
        ((832, 1344), 279_279),
        ((1024, 1024), 261_888),
        ((1280, 1280), 409_200),
    ],
)
def test_numbers_of_anchors_are_published(image: tuple[int, int], expected: int) -> None:
    model = network(r50(), num_classes=80, shape=(*image, 3))
    assert len(model.anchors()) == sum(model.level_sizes()) == expected
    if image == (800, 1344):
        assert model.level_sizes() == [201_600, 50_400, 12_600, 3_150, 819]


def test_anchors_are_a_square_a_wide_and_a_tall_rectangle_of_one_area() -> None:
    model = network(r50(), num_classes=80, shape=(256, 128, 3))
    anchors = model.anchors() * [256, 128, 256, 128]
    first = 0
    for level, size in enumerate(model.level_sizes(), 2):
        side, root = 8 * 2.0**level, math.sqrt(2)
        boxes = anchors[first : first + 3]
        center = 2.0**level / 2
        np.testing.assert_allclose((boxes[:, :2] + boxes[:, 2:]) / 2, center, atol=1e-3)
        expected = [(side, side), (side / root, side * root), (side * root, side / root)]
        np.testing.assert_allclose(boxes[:, 2:] - boxes[:, :2], expected, rtol=1e-5)
        first += size


# ---- backbones -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (r50(), [(16, 256), (8, 512), (4, 1024), (2, 2048)]),
        (
            botnet(num_layers=50, num_classes=1, image_shape=(64, 64, 3))[:-1],
            [(16, 256), (8, 512), (4, 1024), (2, 2048)],
        ),
        (
            efficientnet(SCALINGS["b0"], num_classes=1)[:-1],
            [(16, 24), (8, 40), (4, 112), (2, 1280)],
        ),
    ],
    ids=["resnet", "botnet", "efficientnet"],
)
def test_any_network_has_a_map_for_each_level(layers: Any, expected: list[Any]) -> None:
    shapes = Backbone.params(layers=layers).build().output_shape((1, 64, 64, 3))
    assert [(shape[1], shape[3]) for shape in shapes] == expected


def test_maps_are_the_last_results_of_their_size(draw) -> None:
    convs = [ConvNorm.params(dim=a, output_dim=b, stride=s) for a, b, s in ((2, 3, 2), (3, 4, 1))]
    layers = [*convs, ConvNorm.params(dim=4, output_dim=5, stride=2)]
    layer = Backbone.params(layers=layers, first_level=1).build()
    x, weights = tf.constant(DRAW.normal(size=[2, 8, 6, 2]), tf.float32), draw(layer)
    call = {"state": {k: tf.ones(s.shape) for k, s in layer.states().items()}}
    first, second = apply(layer, weights, x, call=call)[0]
    assert [tuple(first.shape), tuple(second.shape)] == [(2, 4, 3, 4), (2, 2, 2, 5)]
    assert layer.output_shape(x.shape) == ((2, 4, 3, 4), (2, 2, 2, 5))


@pytest.mark.parametrize(
    ("layers", "first", "message"),
    [
        ([ConvNorm.params(dim=3, output_dim=4, stride=4)], 1, "no layer's result has level 1"),
        ([ConvNorm.params(dim=3, output_dim=4, stride=2)], 2, "the last level of the layers is 1"),
        (
            [Conv2D.params(dim=3, output_dim=4), ImageHead.params(dim=4, num_classes=2)],
            1,
            r"layers\[1\] makes \[1, 2\] of the images: a backbone ends before",
        ),
    ],
)
def test_layers_that_lack_a_level_are_refused(layers: Any, first: int, message: str) -> None:
    layer = Backbone.params(layers=layers, first_level=first).build()
    with pytest.raises(ParamError, match=message):
        layer.output_shape((1, 16, 16, 3))


# ---- pyramid and heads ---------------------------------------------------------------------------


def test_the_pyramid_adds_enlarged_maps_from_above(draw) -> None:
    layer = FeaturePyramid.params(dims=(2, 3), output_dim=4).build()
    weights = draw(layer)
    maps = [tf.constant(DRAW.normal(size=[2, *s]), tf.float32) for s in ((5, 4, 2), (3, 2, 3))]
    lateral = [
        x.numpy() @ weights[f"laterals/{i}/w"].numpy()[0, 0] + weights[f"laterals/{i}/b"].numpy()
        for i, x in enumerate(maps)
    ]
    total = lateral[0] + lateral[1].repeat(2, 1).repeat(2, 2)[:, :5, :4]
    expected = [
        tf.nn.conv2d(x, weights[f"convs/{i}/w"], 1, "SAME") + weights[f"convs/{i}/b"]
        for i, x in enumerate((total, lateral[1]))
    ]
    expected.append(expected[1][:, ::2, ::2])
    found = apply(layer, weights, maps)[0]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    shapes = layer.output_shape([tuple(x.shape) for x in maps])
    assert [tuple(x.shape) for x in found] == list(shapes)


def test_norms_of_the_pyramid_are_optional() -> None:
    layer = FeaturePyramid.params(dims=(2, 3), output_dim=4, norm=BatchNorm).build()
    assert sum("gamma" in name for name in layer.weights()) == 2


def test_the_region_head_computes_all_maps_by_the_same_weights(draw) -> None:
    layer = RegionHead.params(dim=4, num_shapes=2, hidden_dim=3).build()
    weights = draw(layer)
    maps = [tf.constant(DRAW.normal(size=[2, *s, 4]), tf.float32) for s in ((3, 2), (2, 1))]
    codes, logits = apply(layer, weights, maps)[0]
    assert layer.output_shape([tuple(x.shape) for x in maps]) == (codes.shape, logits.shape)
    hidden = tf.nn.relu(tf.nn.conv2d(maps[1], weights["conv/w"], 1, "SAME") + weights["conv/b"])
    hidden = hidden.numpy()
    for name, found in (("codes", codes), ("logits", logits)):
        own = hidden @ weights[f"{name}/w"].numpy()[0, 0] + weights[f"{name}/b"].numpy()
        expected = own.reshape(2, 4, -1).squeeze()
        np.testing.assert_allclose(found[:, 12:], expected, rtol=1e-4, atol=1e-5)


def test_regions_are_classified_one_by_one(draw) -> None:
    layer = BoxHead.params(dim=2, num_classes=3, size=2, hidden_dim=5).build()
    weights, x = draw(layer), DRAW.normal(size=[2, 3, 2, 2, 2]).astype("f")
    codes, logits = apply(layer, weights, tf.constant(x))[0]
    w = {name: value.numpy() for name, value in weights.items()}
    y = x.reshape(2, 3, 8)
    for i in range(2):
        y = np.maximum(y @ w[f"hidden/{i}/w"] + w[f"hidden/{i}/b"], 0)
    np.testing.assert_allclose(logits, y @ w["logits/w"] + w["logits/b"], rtol=1e-4, atol=1e-5)
    expected = (y @ w["codes/w"] + w["codes/b"]).reshape(2, 3, 4, 4)
    np.testing.assert_allclose(codes, expected, rtol=1e-4, atol=1e-5)


def test_a_mask_has_twice_the_bins_of_its_region(draw) -> None:
    layer = MaskHead.params(dim=2, num_classes=3, size=3, hidden_dim=4, num_convs=1).build()
    weights, x = draw(layer), DRAW.normal(size=[2, 3, 3, 3, 2]).astype("f")
    found = apply(layer, weights, tf.constant(x))[0]
    assert tuple(found.shape) == layer.output_shape(x.shape) == (2, 3, 6, 6, 4)
    w = {name: value.numpy() for name, value in weights.items()}
    y = tf.nn.conv2d(x[1, 2][None], w["convs/0/w"], 1, "SAME") + w["convs/0/b"]
    y = np.maximum(y, 0)
    each = np.einsum("bhwc,ijcf->bhiwjf", y, w["deconv/w"]).reshape(1, 6, 6, 4)
    y = np.maximum(each + w["deconv/b"], 0) @ w["logits/w"][0, 0] + w["logits/b"]
    np.testing.assert_allclose(found[1, 2], y[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"anchor_scale": 0.0}, "anchor_scale=0.0 is not positive"),
        ({"num_region_maps": 9}, "num_region_maps=9, but the pyramid has 5 maps"),
        ({"region_head": RegionHead.params(num_shapes=4)}, "num_shapes=4, but a position has 3"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(fields: Any, message: str) -> None:
    params = MaskRcnn.params(trunk=Backbone.params(layers=r50()), **fields)
    with pytest.raises(ParamError, match=message):
        params.build(image_shape=(64, 64, 3), num_classes=2)
