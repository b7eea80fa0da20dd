"""AmoebaNet: published sizes, an independent count, and cells against their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import BatchNorm, Chain, Layer
from lingo.layers.context import apply
from lingo.learner.state import initial_value
from lingo.models import (
    AuxiliaryHead,
    NormalCell,
    NormalCellB,
    ReductionCell,
    ReductionCellB,
    SeparableUnit,
)
from lingo.models.image.amoebanet import amoebanet
from tests.conftest import graph_flops

COUNTS = {  # with the published number and its last digit
    (18, 208): (81_505_540, 82e6, 1e6),
    (18, 416): (319_024_120, None, None),
    (18, 544): (542_734_840, 542e6, 1e6),
    (36, 544): (1_055_832_376, 1.05e9, 1e7),
    (72, 512): (1_844_858_344, 1.8e9, 1e8),
}
EPSILON = 1e-3
SMALL = {"num_layers": 3, "num_filters": 8, "num_classes": 5}


def model(**fields: Any) -> Layer:
    return Chain.params(layers=amoebanet(**fields)).build()


def states(layer: Layer) -> dict[str, Any]:
    return {name: tf.constant(initial_value(spec, 0)) for name, spec in layer.states().items()}


def num_weights(layer: Layer) -> int:
    return sum(spec.size for spec in layer.weights().values())


def conv(i: int, o: int, window: int = 1) -> int:
    return i * o * window + 2 * o


def wide(c: int, *windows: int) -> int:
    return conv(c, c // 4) + sum(conv(c // 4, c // 4, k) for k in windows) + conv(c // 4, c)


def normal(c: int) -> int:
    return 3 * conv(c, c) + 2 * wide(c, 7, 7)


def reduction(c: int) -> int:
    return conv(c, c) + wide(c, 9) + wide(c, 7, 7)


def counted(num_layers: int, d: int, num_classes: int) -> int:
    """Counts from the image on; x and before are the channels of the two inputs of a cell."""
    n = num_layers // 3
    total = conv(3, d // 4, 9)  # the stem
    total += conv(d // 4, d // 2) * 2 + reduction(d // 2)  # both inputs are the stem's result
    total += conv(3 * d // 2, d) + conv(d // 4, d) + reduction(d)
    x, before = 3 * d, 3 * d // 2
    for c in (d, 2 * d, 4 * d):
        if c > d:
            total += conv(x, c) + conv(before, c) + reduction(c)
            x, before = 3 * c, x
        for _ in range(n):
            total += conv(x, c) + conv(before, c) + normal(c)
            x, before = 4 * c, x
    return total + x * num_classes + num_classes


@pytest.mark.parametrize("size", COUNTS)
def test_counts_are_those_of_the_formula_and_the_published_ones_to_their_last_digit(size):
    (num_layers, num_filters), (count, published, digit) = size, COUNTS[size]
    built = model(num_layers=num_layers, num_filters=num_filters, num_classes=1000)
    assert num_weights(built) == counted(num_layers, num_filters, 1000) == count
    assert published is None or abs(count - published) < digit


def separable(c: int, window: int) -> int:
    return 2 * (c * window + conv(c, c))


def normal_b(c: int) -> int:
    return 4 * conv(c, c) + 2 * separable(c, 9)


def reduction_b(c: int) -> int:
    return conv(c, c) + wide(c, 9) + separable(c, 25) + separable(c, 9)


def counted_b(d: int, num_classes: int) -> int:
    """Counts (18, d) from the channels of x and before in each cell."""
    total, x, before, after = conv(3, d // 4, 9), d // 4, d // 4, False
    for i, c in enumerate([d // 2, d, *6 * [d], 2 * d, *6 * [2 * d], 4 * d, *6 * [4 * d]]):
        reduces = i in (0, 1, 8, 15)
        aligned = conv(before, c) if after or before != c else 0
        total += conv(x, c) + aligned + (reduction_b(c) if reduces else normal_b(c))
        x, before, after = (2 if reduces else 4) * c, x, reduces
    return total + x * num_classes + num_classes


def test_the_count_of_amoebanet_b_is_that_of_the_formula_and_close_to_the_published_one():
    built = model(num_layers=18, num_filters=512, num_classes=1000, version="B")
    assert num_weights(built) == counted_b(512, 1000) == 560_053_608
    assert abs(num_weights(built) / 557e6 - 1) < 0.006


def test_an_auxiliary_head_is_before_the_last_reduction_and_its_last_window_is_the_image():
    built = model(**SMALL | {"num_filters": 16}, version="B", auxiliary_image=(480, 480))
    (index,) = (i for i, x in enumerate(built.layers) if isinstance(x, AuxiliaryHead))
    assert isinstance(built.layers[index + 1], ReductionCellB)
    assert [type(x) for x in built.layers[index + 1 :]].count(ReductionCellB) == 1
    p = built.layers[index].p
    assert p.image == (30, 30)
    own = conv(p.dim, 128) + conv(128, 768, 9 * 9) + 768 * 5 + 5
    plain = model(**SMALL | {"num_filters": 16}, version="B")
    assert num_weights(built) - num_weights(plain) == own
    assert built.output_shape((2, 480, 480, 3)) == ((2, 5), (2, 5))


def test_cells_drop_more_of_their_paths_the_later_they_are():
    layers = amoebanet(**SMALL, drop_path_rate=0.5)
    rates = [layer.drop_path_rate for layer in layers[1:-1]]
    np.testing.assert_allclose(rates, 0.5 * np.arange(1, 8) / 7)


def test_a_cell_drops_all_operations_but_no_identity():
    built = cell(NormalCellB, dim=8, before_dim=8, drop_path_rate=0.5)
    assert set(built.drop_paths) == {"2_0", "2_1", "3_0", "4_0", "4_1", "5_0", "6_0", "6_1"}


def test_an_imagenet_model_halves_the_image_five_times_before_the_mean() -> None:
    built = model(num_layers=18, num_filters=208, num_classes=1000)
    shape, seen = [2, 224, 224, 3], []
    for layer in built.layers:
        shape = layer.output_shape(shape)
        seen.append(shape[0][1:] if isinstance(shape[0], tuple) else shape)
    assert seen[0] == (112, 112, 52)
    assert seen[1:3] == [(56, 56, 3 * 104), (28, 28, 3 * 208)]
    assert seen[3:9] == [(28, 28, 4 * 208)] * 6
    assert seen[9:16] == [(14, 14, 3 * 416), *[(14, 14, 4 * 416)] * 6]
    assert seen[16:23] == [(7, 7, 3 * 832), *[(7, 7, 4 * 832)] * 6]
    assert seen[23] == (2, 1000)


class Formulas:
    """The operations, written out, with a cell's weights and the first moving statistics."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self.weights = weights

    def norm(self, x: Any, where: str) -> Any:
        gamma, beta = self.weights[f"{where}/gamma"], self.weights[f"{where}/beta"]
        return x / np.sqrt(1 + EPSILON) * gamma + beta

    def unit(self, x: Any, where: str, stride: int = 1) -> Any:
        """Returns what the convolutions of a unit make of x; the first above 1x1 has the stride."""
        for i in range(4):
            if (w := self.weights.get(f"{where}/convs/{i}/w")) is None:
                return x
            alone = f"{where}/convs/1/w" not in self.weights
            strides = stride if alone or (i == 1) else 1
            x = tf.nn.convolution(np.maximum(x, 0), w, strides=strides, padding="SAME")
            x = self.norm(x, f"{where}/norms/{i}")
        return x

    def separable(self, x: Any, where: str, stride: int = 1, dilation: int = 1) -> Any:
        for i, n in enumerate((stride, 1)):
            w, strides = self.weights[f"{where}/convs/{i}/depthwise/w"], [1, n, n, 1]
            x = np.maximum(x, 0)
            x = tf.nn.depthwise_conv2d(x, w, strides, "SAME", dilations=[dilation] * 2)
            x = tf.nn.convolution(x, self.weights[f"{where}/convs/{i}/pointwise/w"])
            x = self.norm(x, f"{where}/norms/{i}")
        return x


def largest(x: Any, size: int, stride: int) -> Any:
    return tf.nn.pool(x, [size, size], "MAX", [stride, stride], "SAME")


def mean(x: Any, size: int) -> Any:
    return tf.nn.pool(x, [size, size], "AVG", padding="SAME")


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def cell(cls: type[Layer], **fields: Any) -> Layer:
    params = cls.params(num_filters=8, **fields)
    params.all(BatchNorm).set(epsilon=EPSILON)
    return params.build()


def test_a_normal_cell_computes_its_formula(with_weights) -> None:
    layer, weights = with_weights(cell(NormalCell, dim=6, before_dim=8))
    x, before = images(2, 4, 4, 6), images(2, 4, 4, 8)
    f = Formulas(weights)
    n0, n1 = f.unit(x, "squeeze"), before
    n2 = f.unit(n1, "operations/2_0") + largest(n1, 3, 1)
    n3 = f.unit(n0, "operations/3_0") + n1
    n4 = f.unit(n0, "operations/4_0") + f.unit(n0, "operations/4_1")
    n5 = largest(n2, 3, 1) + n2
    n6 = mean(n1, 3) + f.unit(n5, "operations/6_1")
    (y, handed_on), _ = apply(layer, weights, (x, before), call={"state": states(layer)})
    np.testing.assert_allclose(y, tf.concat([n0, n3, n4, n6], -1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(handed_on, x)


def test_cells_of_amoebanet_b_compute_their_formulas(with_weights) -> None:
    layer, weights = with_weights(cell(NormalCellB, dim=6, before_dim=8))
    x, before = images(2, 4, 4, 6), images(2, 4, 4, 8)
    f = Formulas(weights)
    n0, n1 = f.unit(x, "squeeze"), before
    n2 = f.unit(n1, "operations/2_0") + largest(n1, 3, 1)
    n3 = f.separable(n0, "operations/3_0") + n1
    n4 = f.unit(n1, "operations/4_0") + f.separable(n0, "operations/4_1")
    n5 = f.unit(n2, "operations/5_0") + n2
    n6 = mean(n1, 3) + f.unit(n5, "operations/6_1")
    logits = np.ones([2, 3], "f")
    (y, *others), _ = apply(layer, weights, (x, before, logits), call={"state": states(layer)})
    np.testing.assert_allclose(y, tf.concat([n0, n3, n4, n6], -1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(others[0], x)
    np.testing.assert_array_equal(others[1], logits)

    layer, weights = with_weights(cell(ReductionCellB, dim=8, before_dim=8))
    x, f = images(2, 4, 4, 8), Formulas(weights)
    n0, n1 = f.unit(x, "squeeze"), before
    n2 = largest(n0, 2, 2) + largest(n0, 3, 2)
    n3 = f.unit(n1, "operations/3_0", stride=2) + n2
    n4 = f.separable(n2, "operations/4_0", dilation=2) + largest(n2, 3, 1)
    n5 = f.separable(n1, "operations/5_0", stride=2) + n3
    n6 = mean(n4, 3) + f.unit(n3, "operations/6_1")
    (y, _), _ = apply(layer, weights, (x, before), call={"state": states(layer)})
    np.testing.assert_allclose(y, tf.concat([n5, n6], -1), rtol=1e-4, atol=1e-4)


def test_an_auxiliary_head_computes_its_formula(with_weights) -> None:
    params = AuxiliaryHead.params(dim=6, image=(8, 8), num_classes=3, widths=(4, 5))
    params.all(BatchNorm).set(epsilon=EPSILON)
    layer, weights = with_weights(params.build())
    x, f = images(2, 8, 8, 6), Formulas(weights)
    y = tf.nn.pool(np.maximum(x, 0), [5, 5], "AVG", [3, 3], "VALID")
    y = np.maximum(f.norm(tf.nn.convolution(y, weights["convs/0/w"]), "norms/0"), 0)
    y = np.einsum("bhwc,hwcf->bf", y, weights["convs/1/w"])
    y = np.maximum(f.norm(y, "norms/1"), 0)
    expected = y @ weights["linear/w"] + weights["linear/b"]
    (first, logits), _ = apply(layer, weights, (x,), call={"state": states(layer)})
    np.testing.assert_array_equal(first, x)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [4, 7])
def test_a_reduction_cell_after_a_reduction_computes_its_formula(size: int, with_weights) -> None:
    layer, weights = with_weights(cell(ReductionCell, dim=6, before_dim=5, after_reduction=True))
    x, before = images(2, -(-size // 2), -(-size // 2), 6), images(2, size, size, 5)
    f = Formulas(weights)
    rectified = np.maximum(before, 0)
    odd = np.zeros_like(rectified[:, ::2, ::2])
    shifted = rectified[:, 1::2, 1::2]
    odd[:, : shifted.shape[1], : shifted.shape[2]] = shifted
    halves = [
        np.einsum("bhwc,cf->bhwf", v, weights[f"align/{k}/w"][0, 0])
        for k, v in (("even", rectified[:, ::2, ::2]), ("odd", odd))
    ]
    n0 = f.unit(x, "squeeze")
    n1 = f.norm(np.concatenate(halves, -1), "align/norm")
    n2 = largest(n0, 2, 2) + largest(n0, 3, 2)
    n3 = f.unit(n1, "operations/3_0", stride=2) + n2
    n4 = f.unit(n2, "operations/4_0") + largest(n2, 3, 1)
    n5 = largest(n1, 2, 2) + n3
    n6 = mean(n2, 3) + f.unit(n3, "operations/6_1")
    (y, _), _ = apply(layer, weights, (x, before), call={"state": states(layer)})
    np.testing.assert_allclose(y, tf.concat([n4, n5, n6], -1), rtol=1e-4, atol=1e-4)


class Watched(Chain):
    """A chain that returns what each of its layers does."""

    def __call__(self, x: Any) -> list[Any]:
        found = []
        for layer in self.layers:
            x = layer(x)
            found.append(x)
        return found


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({"small_images": True, "channels": 1}, (2, 8, 8, 1)),
        ({}, (2, 37, 40, 3)),
        ({"small_images": True, "auxiliary_image": (10, 12)}, (2, 10, 12, 3)),
    ],
)
def test_output_shapes_and_flops_are_those_of_the_call(fields, shape, draw):
    built = Watched.params(layers=amoebanet(**SMALL, **fields)).build()
    weights, state = draw(built), states(built)
    call = tf.function(
        lambda x: apply(built, weights, x, call={"state": state})[0], autograph=False
    ).get_concrete_function(tf.TensorSpec(shape))
    expected: Any = shape
    for layer, got in zip(built.layers, call.structured_outputs, strict=True):
        expected = layer.output_shape(expected)
        assert tf.nest.map_structure(lambda t: tuple(t.shape), got) == expected
    assert built.output_shape(shape) == expected
    assert expected == (((2, 5), (2, 5)) if "auxiliary_image" in fields else (2, 5))
    assert built.flops(shape) == graph_flops(call.graph)


def test_the_operations_of_a_separable_unit_are_those_of_the_call(draw):
    layer = SeparableUnit.params(dim=6, kernel=(5, 5), stride=2).build()
    weights, state = draw(layer), states(layer)
    call = tf.function(
        lambda x: apply(layer, weights, x, call={"state": state})[0], autograph=False
    ).get_concrete_function(tf.TensorSpec((2, 7, 8, 6)))
    assert layer.flops((2, 7, 8, 6)) == graph_flops(call.graph)
    assert layer.output_shape((2, 7, 8, 6)) == tuple(call.structured_outputs.shape)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_layers": 4}, r"num_layers=4 is not a multiple of 3"),
        ({"num_layers": 0}, r"num_layers=0 is not a multiple of 3"),
        ({"num_filters": 6}, r"num_filters=6 is not a multiple of 4"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        amoebanet(**(SMALL | fields))


def test_an_auxiliary_head_refuses_images_of_another_size() -> None:
    head = AuxiliaryHead.params(dim=4, image=(8, 8), num_classes=3).build()
    assert head.output_shape(((2, 8, 8, 4),)) == ((2, 8, 8, 4), (2, 3))
    with pytest.raises(ParamError, match=r"image=\(8, 8\), but its input is \(14, 14\)"):
        head.output_shape(((2, 14, 14, 4),))
    with pytest.raises(ParamError, match=r"the head of a network is for images of one size"):
        head((tf.zeros([2, 20, 20, 4]),))
