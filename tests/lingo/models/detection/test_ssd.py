"""SSD: sizes of SSD300 with ResNet-34, its maps, the order of anchors, against slow NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import Conv2D
from lingo.layers.context import apply
from lingo.learner.state import initial_value
from lingo.models import ExtraMap, Ssd
from lingo.models.detection.ssd import SSD300, resnet34_trunk, ssd300_extras
from tests.conftest import graph_flops

SMALL = Ssd.params(
    image_shape=(8, 6, 2),
    num_classes=2,
    trunk=Conv2D.params(dim=2, output_dim=3, stride=2),
    extras=[ExtraMap.params(dim=3, hidden_dim=4, output_dim=5)],
    scales=(2.0, 3.0, 5.0),
    ratios=((2.0,), ()),
)
X = np.random.default_rng(0).normal(size=[2, 8, 6, 2]).astype("f")


def ssd300() -> Ssd:
    params = Ssd.params(trunk=resnet34_trunk(), extras=ssd300_extras(), **SSD300)
    return params.build(image_shape=(300, 300, 3), num_classes=80)


def weights(layer: Any) -> dict[str, Any]:
    return {name: tf.constant(initial_value(spec, 0)) for name, spec in layer.weights().items()}


def test_ssd300_has_the_weights_and_anchors_of_mlperf() -> None:
    model = ssd300()
    sizes = {name: spec.size for name, spec in model.weights().items()}
    assert sum(sizes.values()) == 19_972_534
    parts = {"trunk": 8_170_304, "extras": 3_574_400}
    for part, expected in parts.items():
        assert sum(n for name, n in sizes.items() if name.startswith(part)) == expected
    assert model.anchors().shape == (8732, 4)
    assert model.output_shape([2, 300, 300, 3]) == ((2, 8732, 4), (2, 8732, 81))


def test_ssd300_has_six_maps() -> None:
    model, shape = ssd300(), (1, 300, 300, 3)
    shapes = [shape := layer.output_shape(shape) for layer in (model.trunk, *model.extras)]
    assert [s[1:] for s in shapes] == [
        (38, 38, 256),
        (19, 19, 512),
        (10, 10, 512),
        (5, 5, 256),
        (3, 3, 256),
        (1, 1, 256),
    ]
    for heads, size in ((model.box_heads, 4), (model.class_heads, 81)):
        assert [head.p.output_dim for head in heads] == [size * n for n in (4, 6, 6, 6, 4, 4)]


def test_an_extra_map_is_two_convolutions_with_relus() -> None:
    layer = ExtraMap.params(dim=2, hidden_dim=3, output_dim=4, padding="VALID", stride=1).build()
    draw = np.random.default_rng(1)
    values = {k: draw.normal(size=s.shape).astype("f") for k, s in layer.weights().items()}
    hidden = np.maximum(X @ values["reduce/w"][0, 0] + values["reduce/b"], 0)
    expected = np.zeros([2, 6, 4, 4])
    for i, j in np.ndindex(6, 4):
        window = hidden[:, i : i + 3, j : j + 3]
        expected[:, i, j] = np.einsum("bhwc,hwcf->bf", window, values["shrink/w"])
    expected = np.maximum(expected + values["shrink/b"], 0)
    found, _ = apply(layer, {k: tf.constant(v) for k, v in values.items()}, tf.constant(X))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert tuple(found.shape) == layer.output_shape(X.shape)


def test_outputs_are_in_the_order_of_anchors() -> None:
    """The heads are set so that each says its map, position and shape, and nothing else."""
    model = SMALL.build()
    values = {name: tf.zeros(spec.shape) for name, spec in model.weights().items()}
    for i, num in enumerate((4, 2)):
        values[f"box_heads/{i}/b"] = tf.range(4.0 * num) + 100.0 * i
        values[f"class_heads/{i}/b"] = tf.range(3.0 * num) + 100.0 * i
    outputs, _ = apply(model, values, tf.constant(X))
    codes = [*[np.arange(16.0).reshape(4, 4)] * 12, *[np.arange(8.0).reshape(2, 4) + 100] * 4]
    np.testing.assert_array_equal(outputs.codes[0], np.concatenate(codes))
    logits = [*[np.arange(12.0).reshape(4, 3)] * 12, *[np.arange(6.0).reshape(2, 3) + 100] * 4]
    np.testing.assert_array_equal(outputs.logits[0], np.concatenate(logits))
    assert model.anchors().shape == (12 * 4 + 4 * 2, 4)


def test_the_anchor_of_an_output_is_where_the_output_looks() -> None:
    """What changes when a pixel does is around the anchors that contain the pixel."""
    model = SMALL.build()
    values = weights(model)
    changed = X.copy()
    changed[:, 7, 5] += 1
    first, other = (apply(model, values, tf.constant(x))[0].codes.numpy() for x in (X, changed))
    anchors = model.anchors()[:48]
    centers = (anchors[:, :2] + anchors[:, 2:]) / 2 * (8, 6)
    moved = np.any(first[:, :48] != other[:, :48], axis=(0, 2))
    near = (np.abs(centers - (7.5, 5.5)) <= 4).all(-1)  # the windows of two 3x3, the first of 2
    assert moved.any()
    assert not (moved & ~near).any()


def test_its_operations_are_those_of_the_graph() -> None:
    model = SMALL.build()
    graph = tf.Graph()
    with graph.as_default():
        apply(model, weights(model), tf.constant(X))
    assert model.flops(X.shape) == graph_flops(graph)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scales": (1.0, 2.0)}, "scales has 2 entries, but .* make 2 maps, which need 3"),
        ({"ratios": ((2.0,),)}, "ratios has 1 entries, but .* make 2 maps, which need 2"),
        ({"steps": (1.0,)}, "steps has 1 entries, but .* make 2 maps, which need 2"),
        ({"num_classes": 0}, "num_classes=0 is not positive"),
        ({"ratios": ((2.0,), (-2.0,))}, r"-2\.0 is not positive"),
    ],
)
def test_numbers_that_do_not_fit_the_maps_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        SMALL.copy().set(**fields).build()
