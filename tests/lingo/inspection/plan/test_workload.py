"""What a step computes, as units of alike layers."""

from __future__ import annotations

import pytest

from lingo.config import registry
from lingo.contract import build_experiment
from lingo.inspection.plan.workload import Workload, workload


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
