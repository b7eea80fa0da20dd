"""What a step computes, as units of alike layers."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from lingo import layers as nn
from lingo.config import registry
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment, build_experiment
from lingo.inspection.plan.workload import Workload, missing_flops, workload
from lingo.layers import Keras
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.mesh.rules import RECIPES
from lingo.mesh.topology import topology


def load(experiment: str, *overrides: str) -> Workload:
    return workload(build_experiment(registry.get(experiment, overrides)))


@pytest.mark.parametrize(
    "experiment",
    [
        "lm.lingvo_dense.dense_1t",
        "lm.gpipe.transformer_l(num_layers=13)",
        "lm.switch.t5_base",
        "image.resnet.resnet50",
        "image.vit.s16",
        "image.ssd.scenes",
        "image.mask_rcnn.scenes",
        "image.botnet.glyphs",
        "image.unet.blobs",
    ],
)
def test_units_have_all_operations_of_the_task(experiment: str) -> None:
    found = load(experiment)
    assert sum(number * unit.flops for unit, number in found.units.items()) == found.flops
    weights = sum(number * unit.weight_flops for unit, number in found.units.items())
    assert 0 < weights <= found.flops


def test_a_transformer_has_a_unit_for_attention_and_one_for_its_network() -> None:
    found = load("lm.lingvo_dense.dense_1t")
    units = {unit.kind: unit for unit in found.units}
    attention, network, head = units["Attention"], units["FeedForward"], units["TiedHead"]
    rows, dim, hidden = 16 * 512, 16384, 131072
    assert [found.units[unit] for unit in (attention, network, head)] == [128, 128, 1]
    assert network.positions == attention.positions == rows
    assert network.flops == network.weight_flops == 2 * rows * 3 * dim * hidden
    # queries times keys, and weights times values
    assert attention.flops - attention.weight_flops == 4 * 16 * 512 * 512 * 256 * 128
    assert attention.logits == 16 * 256 * 512 * 512
    assert [one.axes[: one.num_summed] for one in attention.matrices][-1] == ("heads", "head_dim")
    assert (head.in_stack, network.in_stack) == (False, True)
    assert (head.is_recomputed, network.is_recomputed) == (False, True)
    assert (found.stack, found.layer, found.num_steps) == ("Repeat", "TransformerLayer", 128)
    assert found.boundary == (16, 512, dim)


def test_experts_compute_all_slots_and_tokens_are_sent_by_products() -> None:
    found = load("lm.source.tiny_moe")
    dense = load("lm.source.tiny")
    units = {unit.kind: unit for unit in found.units if unit.kind == "MoE"}
    experts = next(unit for unit in found.units if unit.num_experts > 1)
    batch, length, dim = found.boundary
    rows = next(unit for unit in dense.units if unit.kind == "FeedForward").positions
    assert rows == batch * length
    slots = experts.shape[0]
    assert slots >= rows  # the capacity of all experts is that of all tokens, at least
    assert experts.flops == 2 * slots * sum(one.size for one in experts.matrices)
    assert units["MoE"].flops == 4 * slots * length * dim


def test_a_convolution_has_the_positions_of_its_result() -> None:
    first = next(iter(load("image.resnet.resnet50").units))
    assert first.shape == (256, 224, 224, 3)
    assert first.positions == 256 * 112 * 112
    assert first.matrices[0].num_summed == 3


@pytest.mark.parametrize(
    ("experiment", "rows", "columns"),
    [("image.mask_rcnn.r50", 1024, 1024), ("mlperf.mask_rcnn.v07_pod", 832, 1344)],
)
def test_mask_rcnn_has_the_products_of_trunk_pyramid_and_heads(
    experiment: str, rows: int, columns: int
) -> None:
    found = load(experiment)
    sizes = [math.ceil(rows / step) * math.ceil(columns / step) for step in (4, 8, 16, 32, 64)]
    trunk = (4.089e9 - 2048 * 1000) * rows * columns / 224**2  # ResNet-50 without its classifier
    sides = sum(256 * dim * n for dim, n in zip((256, 512, 1024, 2048), sizes, strict=False))
    pyramid = sides + 9 * 256**2 * sum(sizes[:4])
    first = (9 * 256**2 + 256 * 3 * 5) * sum(sizes)  # three anchors: a logit and a box each
    boxes = 512 * (49 * 256 * 1024 + 1024**2 + 1024 * 81 * 5)
    masks = 128 * (4 * 14**2 * 9 * 256**2 + 28**2 * 256 * (256 + 81))
    products = trunk + pyramid + first + boxes + masks
    assert found.flops / found.batch_size == pytest.approx(2 * products, rel=0.005)
    assert not found.unknown_residuals


def test_layers_of_one_stack_count_the_same_whichever_way_it_computes() -> None:
    def counts(stack: str) -> dict[str, tuple[int, int]]:
        units = load("lm.source.tiny", f"Stack={stack}").units
        return {unit.kind: (unit.flops, number) for unit, number in units.items()}

    plain = counts("Stack")
    assert [plain[kind][1] for kind in ("Attention", "FeedForward", "RmsNorm")] == [4, 4, 8]
    assert counts("Repeat") == counts("Pipeline(num_stages=2, num_micro_batches=2)") == plain


def test_cross_attention_has_keys_of_the_length_of_the_source() -> None:
    found = load("lm.st_moe.stability", "train_input.batch_size=2")
    unit = next(unit for unit in found.units if unit.kind == "CrossAttention")
    batch, length, heads, width, source = 2, 51, 4, 32, 256
    dim = heads * width
    products = 2 * batch * (2 * length + 2 * source) * dim * dim
    pairs = batch * heads * length * source
    assert (unit.flops, unit.logits) == (products + 4 * pairs * width, pairs)
    shapes = {one.residual.shape for one in found.residuals}
    assert {(batch, source, heads, width), (batch, heads, length, source)} <= shapes


def test_remat_of_a_part_of_the_stack_saves_no_bytes_that_are_counted() -> None:
    part = load("lm.source.tiny", "FeedForward=Remat(layer=_)")
    assert not part.is_recomputed
    assert len(part.partial_remats) == 4
    whole = load("lm.source.tiny", "TransformerLayer=Remat(layer=_)")
    assert whole.is_recomputed
    assert whole.partial_remats == []


def test_attention_by_blocks_keeps_no_logits() -> None:
    long = "train_input.length=4096"
    assert all(not unit.logits for unit in load("lm.source.tiny", long).units)
    whole = load("lm.source.tiny", long, "Attention.blockwise=False").units
    assert sum(unit.logits for unit in whole) == 4 * 4 * 4096**2


# ---- layers that do not count their FLOPs are named


class Own(Layer):
    """A layer that multiplies, and does not count."""

    def setup(self) -> None:
        self.w = self.weight("w", [64, 64], axes=("embed", "mlp"))

    def output_shape(self, shape: Any) -> Any:
        return shape


def factory() -> None:
    """Is not called, since nobody asks for weights."""


def digits() -> Any:
    return registry.get("image.lenet.digits", [])


def build(model: Params) -> Experiment:
    resolved = digits()
    resolved.params.task.model = model
    return build_experiment(resolved)


def test_all_layers_of_lenet_count() -> None:
    assert missing_flops(build(digits().params.task.model)) == []


def test_a_layer_that_does_not_count_is_named_by_its_path() -> None:
    model = digits().params.task.model
    model.layers = [Own.params(), *model.layers]
    assert missing_flops(build(model)) == ["model/layers/0 (Own)"]


def test_a_task_that_counts_nothing_is_refused_with_its_layers() -> None:
    with pytest.raises(ParamError, match=r"counts no FLOPs.* `flops\(shape\)` of model \(Keras\)"):
        workload(build(Keras.params(factory=factory)))


# ---- what gradients need of layers


def residuals(experiment: str, *overrides: str) -> dict[tuple[int, ...], int]:
    """Returns the number of tensors of each shape in all layers."""
    found: dict[tuple[int, ...], int] = {}
    for one, number in workload(
        build_experiment(registry.get(experiment, overrides))
    ).residuals.items():
        shape = one.residual.shape
        found[shape] = found.get(shape, 0) + number * one.residual.copies
    return found


@pytest.mark.parametrize(
    ("activation", "gated", "copies"),
    [("relu", False, 1), ("relu", True, 3), ("silu", True, 4), ("gelu_tanh", True, 5)],
)
def test_a_network_keeps_what_its_activation_function_needs(
    activation: str, gated: bool, copies: int
) -> None:
    fields = f"FeedForward.activation={activation}", f"FeedForward.gated={gated}"
    assert residuals("lm.source.tiny", *fields)[4, 256, 344] == 4 * copies


def test_attention_keeps_its_weights_unless_it_computes_by_blocks() -> None:
    weights = (4, 4, 256, 256)
    assert residuals("lm.source.tiny")[weights] == 4
    assert weights not in residuals("lm.source.tiny", "Attention.blockwise=True")


def test_a_convolution_keeps_its_result_the_deviation_and_the_activation() -> None:
    found = residuals("image.unet.blobs")
    assert found[8, 16, 16, 16, 8] == 3
    assert found[8, 16, 16, 16, 16] == 3 * 3  # one unit down, two up
    assert found[8, 16, 16, 16, 48] == 1  # joined with what comes from below


def test_a_maximum_keeps_where_it_was_and_units_that_read_the_same_share_its_relu() -> None:
    stem, units, relus, maxima = 2, 6 * 2, 1 + 2, 1 + 2 * 4  # one of them reads a sum
    assert residuals("image.amoebanet.digits")[64, 8, 8, 32] == stem + units + relus + maxima
    assert residuals("image.lenet.digits")[64, 14, 14, 20] == 1 + 4


def test_norms_of_queries_and_keys_are_of_heads() -> None:
    plain = residuals("lm.source.tiny")
    normed = residuals("lm.source.tiny", "DotProductAttention.qk_norm=RmsNorm")
    heads = (4, 256, 4, 32)
    assert normed[heads] == plain[heads] + 4 * (2 + 2)
    assert {shape for shape in normed if shape not in plain} == set()


class Swish(Layer):
    """x * sigmoid(x), by a user: its gradient keeps both factors."""

    def __call__(self, x: Any) -> Any:
        return x * tf.sigmoid(x)

    def output_shape(self, shape: Any) -> Any:
        return shape

    def residuals(self, call: ResidualCall) -> list[Residual]:
        return [batch_residual(2, call.shape)]


def test_a_layer_of_the_users_counts_with_what_it_says() -> None:
    resolved = registry.get("image.lenet.digits")
    plain = residuals("image.lenet.digits")
    resolved.params.task.model.layers.insert(1, Swish.params())
    found = workload(build_experiment(resolved))
    assert found.unknown_residuals == ()
    shape = (64, 14, 14, 20)
    pairs = ((kept.residual, number) for kept, number in found.residuals.items())
    assert sum(n * one.copies for one, n in pairs if one.shape == shape) == plain[shape] + 2


class Block(Layer):
    """A convolution, a norm and a ReLU, by a user: he does not say who keeps what."""

    dim: int
    output_dim: int
    conv: nn.Conv2D = nn.Conv2D
    norm: nn.BatchNorm = nn.BatchNorm

    def setup(self) -> None:
        self.conv = self.p.conv.build(dim=self.p.dim, output_dim=self.p.output_dim)
        self.norm = self.p.norm.build(dim=self.p.output_dim)

    def __call__(self, x: Any) -> Any:
        return tf.nn.relu(self.norm(self.conv(x)))

    def output_shape(self, shape: Any) -> Any:
        return self.conv.output_shape(shape)

    def flops(self, shape: Any) -> int:
        return self.conv.flops(shape) + self.norm.flops(self.conv.output_shape(shape))

    def residuals(self, call: ResidualCall) -> list[Residual]:
        return []


def test_blocks_of_the_users_count_what_those_of_lingo_do() -> None:
    found = []
    for block in (Block, nn.ConvNorm):
        resolved = registry.get("image.lenet.digits")
        layers = [block.params(dim=1, output_dim=4), block.params(dim=4, output_dim=10)]
        head = nn.ImageHead.params(dim=10, num_classes=10)
        resolved.params.task.model.layers[:] = [*layers, head]
        found.append(workload(build_experiment(resolved)))
    sizes: list[dict[tuple[int, ...], int]] = []
    for one in found:
        assert one.unknown_residuals == ()
        copies: dict[tuple[int, ...], int] = {}
        for kept, number in one.residuals.items():
            shape = kept.residual.shape
            copies[shape] = copies.get(shape, 0) + number * kept.residual.copies
        sizes.append(copies)
    users, ours = sizes
    assert users == ours
    assert users[64, 28, 28, 4] == 3  # the norm's input, its deviation, what the next one reads


def test_the_order_has_the_share_of_weights_before_each_layer() -> None:
    shares = [
        share for _, share in workload(build_experiment(registry.get("lm.source.tiny"))).order
    ]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0.9 < shares[-1] <= 1


def test_a_device_has_its_part_of_a_residual() -> None:
    axes = ("batch", "heads", "length", None)
    one = Residual(2, (16, 4, 10, 10), axes, dtype="float32", is_squeezed=True)
    mesh, rules = topology({"data": 4, "model": 2}), RECIPES["1d"]
    assert one.part_bytes(mesh, rules) == 4 * 4 * 2 * 10 * 10
    assert one.part_bytes(mesh, rules, num_parts=4) == 4 * 1 * 2 * 10 * 10


def test_weights_of_one_example_or_one_head_are_kept_in_two_shapes() -> None:
    one = Residual(1, (16, 4, 10, 10), ("batch", "heads", "length", None), is_squeezed=True)

    def copies(num_parts: int = 1, **sizes: int) -> int:
        return one.num_copies(topology(cast("dict", sizes)), RECIPES["1d"], num_parts)

    assert copies(data=4) == 1
    assert copies(data=4, model=4) == 2
    assert copies(data=16) == copies(4, data=4) == 2


def test_tokens_are_sent_by_one_hot_tensors_only_between_devices() -> None:
    one = Residual(2, (640, 256), ("batch", None), for_axis="expert")
    assert one.num_copies(topology({"data": 8}), RECIPES["1d"]) == 0
    assert one.num_copies(topology({"expert": 8}), RECIPES["1d"]) == 2
