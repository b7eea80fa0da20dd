"""Lingvo's beam search, against a slow one in Python."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.decode import PrunedBeam
from lingo.ops import random
from tests.lingo.decode.scores import END, Model, assert_are, batch_of, cut

V, N = 5, 6
PROMPTS = [[2], [3], [4]]
SOURCE = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]], "i")


class Slow(NamedTuple):
    """A text of the slow search."""

    tokens: tuple[int, ...]
    value: float  # log-probability
    coverage: np.ndarray  # [4]


def attention(total: int, mask: np.ndarray) -> np.ndarray:
    """Returns some weights of the source's positions, which depend on all tokens so far."""
    weights = mask * np.exp(np.sin(np.arange(4) * (total % 7 + 1)))
    return weights / weights.sum()


class Attentive(Model):
    """A model that sums attention weights, as `AdditiveAttention` does."""

    def step(self, tokens: tf.Tensor, index: tf.Tensor, caches: Any) -> Any:
        logits, new = super().step(tokens, index, {"past": caches["past"]})
        number = tf.cast(new["past"] % 7 + 1, tf.float32)[:, None]
        weights = tf.repeat(caches["mask"], tf.shape(tokens)[0] // 3, axis=0)
        weights *= tf.exp(tf.sin(tf.range(4, dtype=tf.float32) * number))
        weights /= tf.reduce_sum(weights, axis=1, keepdims=True)
        return logits, {"past": new["past"], "a/coverage": caches["a/coverage"] + weights}


def total_of(tokens: tuple[int, ...]) -> int:
    return sum((t + 1) * (i + 1) for i, t in enumerate(tokens))


class SlowSearch:
    """One step of Lingvo's search at a time, for one prompt."""

    def __init__(self, model: Model, prompt: list[int], mask: np.ndarray, p: Any) -> None:
        self.model, self.mask, self.p = model, mask, p
        self.start, self.best, self.is_done = tuple(prompt), -math.inf, False
        self.live = [Slow((), 0.0, np.zeros(4))]
        self.complete: list[tuple[float, tuple[int, ...]]] = []

    def step(self, t: int) -> None:
        p, longer = self.p, []
        for text in self.live:
            before = self.start + text.tokens
            covered = text.coverage + attention(total_of(before), self.mask)
            log_probs = self.model.log_probs(before)
            likely = sorted(range(V), key=lambda v: -log_probs[v])[: p.num_beams + 1]
            end = log_probs[END]
            is_good = end > max(log_probs) - p.valid_eos_max_logit_delta
            is_good &= bool(end > p.local_eos_threshold) and END in likely
            if is_good or (p.force_end and t == N - 1):
                self.end(text, end, covered)
            longer += [
                Slow((*text.tokens, v), text.value + log_probs[v], covered)
                for v in range(V)
                if v != END
            ]
        self.live = sorted(longer, key=lambda text: -text.value)[: p.num_beams]
        self.is_done |= self.live[0].value <= self.best - p.beam_size

    def end(self, text: Slow, end: float, covered: np.ndarray) -> None:
        p, value, tokens = self.p, text.value + end, (*text.tokens, END)
        self.best = max(self.best, value)
        score = value / ((len(tokens) + 5) / 5) ** p.length_penalty
        logs = np.log(np.clip(covered, 0.001, 0.5))[self.mask > 0]
        self.complete.append((score + p.coverage_penalty * logs.sum(), tokens))


def slow(model: Model, p: Any) -> list[list[tuple[int, ...]]]:
    """Returns the texts of each prompt, best first."""
    searches = [
        SlowSearch(model, prompt, mask, p) for prompt, mask in zip(PROMPTS, SOURCE, strict=True)
    ]
    for t in range(N):
        if all(search.is_done for search in searches):
            break
        for search in searches:
            if not (search.is_done and p.terminate_beams_independently):
                search.step(t)
    return [[t for _, t in sorted(s.complete, key=lambda c: -c[0])] for s in searches]


def run(model: Model, search: PrunedBeam, *, xla: bool = False) -> list[list[Any]]:
    """Returns the texts of each prompt that are there."""
    batch = batch_of(PROMPTS) | {"source_segments": tf.constant(SOURCE)}

    @tf.function(autograph=False, jit_compile=xla)
    def program(batch: Any) -> Any:
        mask = tf.cast(batch["source_segments"] > 0, tf.float32)
        caches = {"past": tf.zeros([3], tf.int32), "a/coverage": tf.zeros([3, 4])}

        def step(tokens: Any, index: Any, caches: Any) -> Any:
            return model.step(tokens, index, {**caches, "mask": mask})

        return search.decode(step, caches, batch, random.root_key(0))

    found = program(batch)
    arrays = zip(found["tokens"].numpy().tolist(), found["log_probs"].numpy().tolist(), strict=True)
    every = [[cut(*text) for text in zip(*texts, strict=True)] for texts in arrays]
    return [[text for text in texts if math.isfinite(sum(text.log_probs))] for texts in every]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_beams": 2, "num_samples": 2},
        {"beam_size": 0.3},
        {"beam_size": 50.0},
        {"valid_eos_max_logit_delta": 0.5},
        {"local_eos_threshold": -0.7},
        {"length_penalty": 1.5},
        {"coverage_penalty": 0.8, "length_penalty": 0.5},
        {"terminate_beams_independently": False, "beam_size": 0.3},
        {"force_end": True, "local_eos_threshold": -0.01, "beam_size": 50.0},
        {"num_beams": 3, "num_samples": 3, "beam_size": 1.0, "valid_eos_max_logit_delta": 2.0},
    ],
    ids=lambda settings: "-".join(settings) or "defaults",
)
def test_each_option_does_what_a_slow_search_does(seed: int, settings: dict[str, Any]) -> None:
    model = Attentive(seed, V)
    search = PrunedBeam.params(max_tokens=N, **settings).build()
    wanted = slow(model, search.p)
    for prompt, texts, best in zip(PROMPTS, run(model, search), wanted, strict=True):
        assert_are(texts, [model.text(prompt, tokens) for tokens in best[: search.p.num_samples]])


def test_options_change_what_is_found() -> None:
    """So the comparison above is of different searches."""
    found = {
        str(settings): str(
            run(Attentive(1, V), PrunedBeam.params(max_tokens=N, **settings).build())
        )
        for settings in (
            {},
            {"beam_size": 0.3},
            {"local_eos_threshold": -0.7},
            {"valid_eos_max_logit_delta": 0.5},
            {"length_penalty": 1.5},
            {"coverage_penalty": 0.8},
        )
    }
    assert len({*found.values()}) == len(found)


def test_xla_finds_the_same() -> None:
    model, search = Attentive(3, V), PrunedBeam.params(max_tokens=N, coverage_penalty=0.2).build()
    for texts, others in zip(run(model, search, xla=True), run(model, search), strict=True):
        assert_are(texts, others)


def test_without_a_source_there_is_no_coverage() -> None:
    search = PrunedBeam.params(max_tokens=N, coverage_penalty=0.2).build()
    caches = {"past": tf.zeros([1], tf.int32)}
    with pytest.raises(ValueError, match="models that read a source"):
        search.decode(Model(0, V).step, caches, batch_of([[2]]), random.root_key(0))


@pytest.mark.parametrize("name", ["beam_size", "valid_eos_max_logit_delta"])
def test_a_gap_below_zero_is_refused(name: str) -> None:
    with pytest.raises(ParamError, match=name):
        PrunedBeam.params(**{name: -1.0}).build()
