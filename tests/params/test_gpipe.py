"""The sizes that GPipe's paper gives for its Transformer-L, weight by weight."""

from __future__ import annotations

import pytest

from lingo.config import registry
from params.lm.gpipe import PUBLISHED

SIZES = {3: 282_146_816, 13: 785_729_536, 103: 5_317_974_016, 415: 21_029_754_880}
SIZES[1663] = 83_876_878_336


def formula(num_layers: int, d: int = 2048, hidden: int = 8192, vocab: int = 32000) -> int:
    """Attention and its biases, two products and theirs, two norms; tokens in and out."""
    layer = 4 * d * d + 4 * d + 2 * d * hidden + hidden + d + 2 * 2 * d
    return num_layers * layer + 2 * vocab * d


@pytest.mark.parametrize("num_layers", SIZES)
def test_transformer_l_has_as_many_weights_as_published(num_layers: int) -> None:
    built = registry.get(f"lm.gpipe.transformer_l(num_layers={num_layers})").params.build()
    found = sum(spec.size for spec in built.task.weights().values())
    assert found == formula(num_layers) == SIZES[num_layers]
    num_stages, published = PUBLISHED[num_layers]
    unit = {"M": 1e6, "B": 1e9}[published[-1]]
    assert abs(found / unit - float(published[:-1])) < 0.1  # 785.7 is published as 785.8
    assert built.task.model.stack.p.num_stages == num_stages


@pytest.mark.parametrize("num_layers", [13, 103, 415, 1663])
def test_a_device_holds_13_layers_and_its_part_of_the_vocabulary(num_layers: int) -> None:
    built = registry.get(f"lm.gpipe.transformer_l(num_layers={num_layers})").params.build()
    layout = built.runtime.layout(built.learner)
    specs = built.task.weights()
    held = sum(layout.rest[k].part_size(s.program_shape, layout.mesh) for k, s in specs.items())
    num_stages, _ = PUBLISHED[num_layers]
    assert held == formula(13, vocab=32000 // num_stages)


def test_one_billion_words_has_eight_layers_in_each_of_four_stages() -> None:
    built = registry.get("lm.gpipe.one_billion_words").params.build()
    bias_of_logits, last_norm, num_heads = 32000, 2 * 2048, 16
    one_layer = formula(1) - formula(0) - 4 * 2048 + 2048 // num_heads
    expected = 32 * one_layer + formula(0) + bias_of_logits + last_norm
    assert sum(spec.size for spec in built.task.weights().values()) == expected == 1_742_314_752
    (round,) = built.task.model.stack.stage_layers([])
    assert round == [range(0, 8), range(8, 16), range(16, 24), range(24, 32)]
