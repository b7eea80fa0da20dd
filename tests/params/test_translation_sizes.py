"""The sizes of models of translation: every weight, by formulas of their own.

Letters: d model width, F hidden width, N heads, L layers of one side, V token ids.
"""

from __future__ import annotations

import numpy as np
import pytest

import lingo
from lingo.config.params import Params
from lingo.layers import FeedForward
from params.mt.gpipe import PUBLISHED


def num_weights(params: Params) -> int:
    return sum(spec.size for spec in params.build().task.weights().values())


def rates(params: Params, steps: list[int]) -> np.ndarray:
    return np.asarray(params.optimizer.build().rates(np.array(steps))["learning_rate"], np.float64)


def lingvo(d: int, N: int, V: int = 32_000, L: int = 6) -> int:
    """An embedding each side, logits with a bias, biases everywhere, a scale of d / N features."""
    attention, ffn = 4 * d * d + 4 * d + d // N, 2 * d * 4 * d + 4 * d + d
    encoder, decoder = attention + ffn + 2 * 2 * d, 2 * attention + ffn + 3 * 2 * d
    return 3 * V * d + V + L * (encoder + decoder)


@pytest.mark.parametrize(
    ("name", "formula", "total"),
    [("base", lingvo(512, 8), 93_323_648), ("big", lingvo(1024, 16), 274_694_528)],
)
def test_lingvos_transformers_of_wmt14_have_its_tensors(name, formula, total) -> None:
    params = lingo.get(f"mt.wmt14.{name}")
    assert num_weights(params) == formula == total


def test_wmt14_has_lingvos_rate_of_learning() -> None:
    """3 d^-0.5 min((t + 1)^-0.5, (t + 1) 40000^-1.5), by Python."""
    steps = [0, 100, 39_999, 99_999]
    expected = [3 * 512**-0.5 * min((t + 1) ** -0.5, (t + 1) * 40_000**-1.5) for t in steps]
    np.testing.assert_allclose(rates(lingo.get("mt.wmt14.base"), steps), expected, rtol=1e-6)


def test_wmt14_reads_the_users_folder_and_no_other() -> None:
    params = lingo.get("mt.wmt14.base(folder='~/mine')")
    inputs = [params.train_input, *params.eval_inputs.values()]
    assert {i.source.pattern for i in inputs} == {"~/mine/train*.tsv", "~/mine/dev.tsv"}
    assert {i.tokenizer.model for i in inputs} == {"~/mine/pieces.model"}


def transformer_big(d: int = 1024, V: int = 33_708, L: int = 6) -> int:
    """One table, no bias in attention, biases in products, a norm at the end of each side."""
    ffn = 2 * d * 4 * d + 4 * d + d
    encoder, decoder = 4 * d * d + ffn + 2 * 2 * d, 8 * d * d + ffn + 3 * 2 * d
    return V * d + L * (encoder + decoder) + 2 * 2 * d


@pytest.mark.parametrize("name", ["reference", "v06_pod", "v07_pod", "v07_jax", "v07_small"])
def test_mlperfs_transformer_has_the_weights_of_its_reference(name: str) -> None:
    total = num_weights(lingo.get(f"mlperf.transformer.{name}"))
    assert total == transformer_big() == 210_804_736


def test_a_big_transformer_with_the_papers_vocabulary_has_its_published_size() -> None:
    params = lingo.get("mlperf.transformer.reference", "task.vocab_size=37000")
    assert num_weights(params) == transformer_big(V=37_000) == 214_175_744  # 213 million


# T(L, H, A) -> weights without norms, as the paper counts them
MULTILINGUAL = {
    (6, 8192, 16): 407_896_064,
    (12, 16384, 32): 1_238_368_256,
    (24, 8192, 16): 1_238_368_256,
    (32, 16384, 32): 3_083_862_016,
    (64, 16384, 32): 6_036_652_032,
}


def gpipe(L: int, H: int, A: int, d: int = 1024, V: int = 64_000) -> int:
    """Attentions of heads of 64, one on the left and two on the right; norms are left out."""
    encoder, decoder = 4 * d * 64 * A + 2 * d * H, 8 * d * 64 * A + 2 * d * H
    return L * (encoder + decoder) + 2 * V * d


def multilingual(L: int, H: int, A: int) -> Params:
    return lingo.get(f"mt.gpipe.multilingual(num_layers={L}, hidden_dim={H}, num_heads={A})")


@pytest.mark.parametrize("size", MULTILINGUAL)
def test_gpipes_multilingual_models_have_the_published_weights_and_norms(size) -> None:
    without_norms, total = gpipe(*size), num_weights(multilingual(*size))
    assert without_norms == MULTILINGUAL[size]
    assert total == without_norms + size[0] * 5 * 2 * 1024  # two norms on the left, three right
    assert total == pytest.approx(without_norms, rel=1e-3)
    unit = {"M": 1e6, "B": 1e9}[PUBLISHED[size][1][-1]]
    assert total == pytest.approx(float(PUBLISHED[size][1][:-1]) * unit, rel=0.05)


@pytest.mark.parametrize(
    ("size", "num_stages"), list(zip(MULTILINGUAL, [2, 4, 4, 8, 16], strict=True))
)
def test_they_have_as_many_stages_as_the_paper_has_partitions(size, num_stages) -> None:
    built = multilingual(*size).build()
    for stack in (built.task.model.encoder, built.task.model.decoder):
        (stages,) = stack.stage_layers([])
        assert [len(layers) for layers in stages] == [size[0] // num_stages] * num_stages
    assert built.runtime.topology().num_devices == 8 * num_stages


@pytest.mark.parametrize(("size", "deviation"), [((6, 8192, 16), 1 / 6), ((24, 8192, 16), 1 / 24)])
def test_deep_models_begin_with_smaller_feed_forward_networks(size, deviation) -> None:
    params = multilingual(*size)
    assert params.task.model.head.logit_cap == 30
    u = np.linspace(-1, 1, 999)
    plain = FeedForward.params().init.build().values(u, 1024)
    for ffn in params.all(FeedForward):
        np.testing.assert_allclose(ffn.init.build().values(u, 1024), plain * deviation, rtol=1e-6)


def gnmt(V: int, d: int = 1024) -> int:
    """A table, LSTMs with two biases, Bahdanau's attention, a matrix of logits and its bias."""

    def lstm(width: int) -> int:
        return 4 * d * (width + d) + 2 * 4 * d

    encoder = 2 * lstm(d) + lstm(2 * d) + 2 * lstm(d)
    assert encoder == 46_178_304
    attention = 2 * d * d + 2 * d + 1
    return V * d + encoder + lstm(d) + 3 * lstm(2 * d) + attention + d * V + V


@pytest.mark.parametrize(("V", "total"), [(32_320, 160_671_297), (32_317, 160_665_150)])
def test_gnmt_has_the_weights_of_mlperfs_reference(V: int, total: int) -> None:
    params = lingo.get(f"mlperf.gnmt.reference(vocab_size={V})")
    assert num_weights(params) == gnmt(V) == total


def test_googles_gnmt_has_as_many() -> None:
    assert num_weights(lingo.get("mlperf.gnmt.v07_pod")) == gnmt(32_320)
