"""The sizes of the sparse models that papers published: every weight, by formulas of their own.

Letters are those of the papers: d model width, F hidden width, N heads, k head width, L layers of
one side, E experts, V token ids.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest

from lingo.cli.main import main
from lingo.config import registry
from lingo.config.params import ParamError, Params


def num_weights(params: Params) -> int:
    return sum(spec.size for spec in params.build().task.weights().values())


class T5(NamedTuple):
    """What Switch Transformers are made of; `products`: 2 of ReLU, 3 of gated networks."""

    d: int
    F: int
    L: int
    N: int
    products: int
    k: int = 64
    E: int = 1
    every: int = 1  # one of so many layers is sparse, where E > 1
    tables: int = 2  # embedding, and a matrix for logits
    extra: bool = False  # ST-MoE: another dense network, with its norm, at sparse layers
    V: int = 32128

    def ffn(self) -> int:
        return self.products * self.d * self.F

    def side(self, attentions: int) -> int:
        """Weights of the encoder (one attention a layer) or of the decoder (two)."""
        total = 32 * self.N + self.d  # shared table of relative positions, last norm
        for layer in range(self.L):
            total += attentions * (4 * self.d * self.N * self.k + self.d) + self.d
            if self.E > 1 and layer % self.every == self.every - 1:
                total += self.E * self.ffn() + self.d * self.E
                total += self.ffn() + self.d if self.extra else 0
            else:
                total += self.ffn()
        return total

    def total(self) -> int:
        return self.tables * self.V * self.d + self.side(1) + self.side(2)


SWITCH = {
    "t5_base": (T5(768, 3072, 12, 12, products=2, tables=1), 222_903_552),
    "t5_large": (T5(1024, 4096, 24, 16, products=2, tables=1), 737_668_096),
    "t5_11b": (T5(1024, 65536, 24, 128, products=2, k=128, tables=1), 11_307_321_344),
    "t5_xxl": (T5(4096, 10240, 24, 64, products=3), 11_135_332_352),
    "switch_base": (T5(768, 3072, 12, 12, products=2, E=128, every=2, tables=1), 7_415_217_408),
    "switch_large": (T5(1024, 4096, 24, 16, products=2, E=128, every=2, tables=1), 26_309_291_008),
    "switch_xxl": (T5(4096, 10240, 24, 64, products=3, E=128, every=2), 394_675_073_024),
    "switch_c": (T5(2080, 6144, 15, 32, products=2, E=2048), 1_571_375_798_688),
}

ST_MOE = {
    "st_moe_l": (T5(1024, 2816, 24, 16, products=3, E=32, every=4, extra=True), 4.1e9),
    "st_moe_32b": (T5(5120, 20480, 24, 64, products=3, k=128, E=64, every=4, extra=True), 269e9),
}

GSHARD = {
    "moe_2048e_36l": (2048, 36, 600e9),
    "moe_2048e_12l": (2048, 12, 200e9),
    "moe_512e_36l": (512, 36, 150e9),
    "moe_512e_12l": (512, 12, 50e9),
    "moe_128e_36l": (128, 36, 37e9),
    "moe_128e_12l": (128, 12, 12.5e9),
}

GIANTS = ["lm.switch.switch_c", "lm.st_moe.st_moe_32b", "mt.gshard.moe_2048e_36l"]


def gshard(num_experts: int, num_layers: int) -> int:
    """The paper's count: half of the layers is the encoder, every second one sparse; no norms."""
    d, hidden, width, half = 1024, 8192, 16 * 128, num_layers // 2
    expert = 2 * d * hidden
    attention = half * (4 + 8) * d * width
    return half * (num_experts + 1) * expert + attention + 96000 * d + half * d * num_experts


@pytest.mark.parametrize("name", SWITCH)
def test_a_switch_transformer_has_the_weights_of_the_formula_and_of_the_paper(name: str) -> None:
    formula, published = SWITCH[name]
    total = num_weights(registry.get(f"lm.switch.{name}").params)
    assert total == formula.total() == published


@pytest.mark.parametrize("name", ST_MOE)
def test_an_st_moe_has_the_weights_of_the_formula_and_the_published_size(name: str) -> None:
    formula, published = ST_MOE[name]
    total = num_weights(registry.get(f"lm.st_moe.{name}").params)
    assert total == formula.total()
    assert total == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("num_layers", "total", "gflops"), [(24, 783_150_080, 489), (27, 872_818_688, 549)]
)
def test_the_dense_model_of_st_moe_has_its_weights_and_flops(num_layers, total, gflops) -> None:
    params = registry.get(f"lm.st_moe.dense_l(num_layers={num_layers})").params
    assert num_weights(params) == T5(1024, 2816, num_layers, 16, products=3).total() == total
    task, sparse = (p.build().task for p in (params, registry.get("lm.st_moe.st_moe_l").params))
    dense_flops, flops = (t.flops([1, 114], source_length=512) / 1e9 for t in (task, sparse))
    assert (round(dense_flops), round(flops)) == (gflops, 569)


@pytest.mark.parametrize("name", GSHARD)
def test_a_gshard_model_has_the_weights_of_the_formula_and_norms(name: str) -> None:
    num_experts, num_layers, published = GSHARD[name]
    total = num_weights(registry.get(f"mt.gshard.{name}").params)
    assert total == pytest.approx(gshard(num_experts, num_layers), rel=1e-3)
    assert total == pytest.approx(published, rel=0.08)  # the paper rounds to words


@pytest.mark.parametrize(("num_experts", "num_layers"), [(2, 4), (16, 8), (2048, 60)])
def test_gshard_models_of_other_sizes_follow_the_formula(num_experts: int, num_layers: int) -> None:
    name = f"mt.gshard.moe(num_experts={num_experts}, num_layers={num_layers})"
    total = num_weights(registry.get(name).params)
    assert total == pytest.approx(gshard(num_experts, num_layers), rel=1e-3)


@pytest.mark.parametrize("num_layers", [6, 0])
def test_gshard_layers_that_do_not_divide_are_refused_by_name(num_layers: int) -> None:
    with pytest.raises(ParamError, match=f"num_layers={num_layers} is not a .* multiple of 4"):
        registry.get(f"mt.gshard.moe(num_layers={num_layers})")


def test_the_dense_gshard_model_has_its_published_size() -> None:
    total = num_weights(registry.get("mt.gshard.dense_96l").params)
    attention, ffn = 48 * (4 + 8) * 1024 * 1024, 96 * 2 * 1024 * 8192
    assert total == pytest.approx(attention + ffn + 96000 * 1024, rel=1e-3)
    assert total == pytest.approx(2.3e9, rel=0.01)


@pytest.mark.parametrize("name", GIANTS)
def test_a_giant_is_counted_in_less_than_a_second(name, capsys):
    begin = time.process_time()
    assert main(["show", f"--exp={name}", "--weights"]) == 0
    assert time.process_time() - begin < 1
    assert f"{num_weights(registry.get(name).params):,}" in capsys.readouterr().out
