"""Decoding of transducers: against all label sequences and all paths, and step by step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.speech import TransducerModel, transducer_beam, transducer_greedy

V, U, H = 3, 3, 11  # classes with the blank, most labels, texts that the model tells apart
FRAMES = [3, 2, 1, 0]


def text_number(labels: tuple[int, ...]) -> int:
    number = 1  # the blank has been read
    for label in labels:
        number = (3 * number + label + 1) % H
    return number


def model_of(encoded: np.ndarray) -> TransducerModel:
    """Returns a model that looks up the logits of a frame [H * V] by all labels so far."""

    def read(label: Any, state: Any) -> Any:
        after = (3 * state["text"] + label + 1) % H
        return tf.one_hot(after, H), {"text": after}

    def join(frame: Any, texts: Any) -> Any:
        return tf.einsum("bhv,bnh->bnv", tf.reshape(frame, [-1, H, V]), texts)

    def start() -> Any:
        return {"text": tf.zeros([len(encoded)], tf.int32)}

    return TransducerModel(join, read, start)


def draw(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, [len(FRAMES), 3, H * V]).astype("f")


def log_probs(frames: np.ndarray, t: int, labels: tuple[int, ...]) -> np.ndarray:
    logits = frames[t].reshape(H, V)[text_number(labels)].astype("d")
    return logits - np.logaddexp.reduce(logits)


def all_texts(frames: np.ndarray, max_symbols: int) -> dict[tuple[int, ...], float]:
    """Returns the log-probability of each text, over paths with few enough labels per frame."""
    paths = {(): 0.0}
    for t in range(len(frames)):
        after: dict[tuple[int, ...], float] = {}
        for labels, score in paths.items():
            for size in range(min(max_symbols, U - len(labels)) + 1):
                for new in itertools.product(range(1, V), repeat=size):
                    path = score
                    for i, label in enumerate(new):
                        path += log_probs(frames, t, labels + new[:i])[label]
                    path += log_probs(frames, t, labels + new)[0]
                    after[labels + new] = np.logaddexp(after.get(labels + new, -np.inf), path)
        paths = after
    return paths


def run(decode: Callable, encoded: np.ndarray, *, xla: bool = False, **settings: Any) -> Any:
    @tf.function(autograph=False, jit_compile=xla)
    def program(x: Any, sizes: Any) -> Any:
        return decode(model_of(encoded), x, sizes, max_labels=U, **settings)

    found = program(tf.constant(encoded), tf.constant(FRAMES[: len(encoded)]))
    return tf.nest.map_structure(lambda x: x.numpy(), found)


@pytest.mark.parametrize("max_symbols", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_enough_beams_give_the_probability_of_every_text(seed: int, max_symbols: int) -> None:
    encoded = draw(seed)
    num_texts = sum((V - 1) ** size for size in range(U + 1))
    found = run(transducer_beam, encoded, num_beams=num_texts + 1, max_symbols=max_symbols)
    for i, size in enumerate(FRAMES):
        wanted = all_texts(encoded[i, :size], max_symbols)
        best = sorted(wanted, key=lambda text: -wanted[text])
        texts = [
            tuple(labels[:n].tolist())
            for labels, n in zip(found.labels[i], found.num_labels[i], strict=True)
        ]
        assert texts[: len(best)] == best
        scores = found.scores[i]
        np.testing.assert_allclose(scores[: len(best)], [wanted[t] for t in best], atol=1e-5)
        assert (scores[len(best) :] < -1e29).all()
        assert not found.num_labels[i, len(best) :].any()


def slow_beam(frames: np.ndarray, num_beams: int, max_symbols: int) -> dict[tuple, float]:
    """Returns the texts of a beam search, best first."""

    def best(texts: dict[tuple, float]) -> dict[tuple, float]:
        return dict(sorted(texts.items(), key=lambda item: -item[1])[:num_beams])

    beams: dict[tuple, float] = {(): 0.0}
    for t in range(len(frames)):
        live, done = beams, dict[tuple, float]()
        for level in range(max_symbols + 1):
            for labels, score in live.items():
                total = score + log_probs(frames, t, labels)[0]
                done[labels] = np.logaddexp(done.get(labels, -np.inf), total)
            done, least = best(done), -np.inf
            if len(done) == num_beams:
                least = min(done.values())
            longer = {
                (*labels, v): score + log_probs(frames, t, labels)[v]
                for labels, score in live.items()
                for v in range(1, V)
                if len(labels) < U and level < max_symbols
            }
            live = best(longer)
            if not live or max(live.values()) <= least:
                break
        beams = done
    return beams


@pytest.mark.parametrize("num_beams", [1, 2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_few_beams_keep_what_a_slow_search_keeps(seed: int, num_beams: int) -> None:
    encoded = draw(seed)
    found = run(transducer_beam, encoded, num_beams=num_beams, max_symbols=2)
    for i, size in enumerate(FRAMES):
        wanted = slow_beam(encoded[i, :size], num_beams, 2)
        texts = [
            tuple(labels[:n].tolist())
            for labels, n in zip(found.labels[i], found.num_labels[i], strict=True)
        ]
        assert texts[: len(wanted)] == list(wanted)
        np.testing.assert_allclose(found.scores[i, : len(wanted)], [*wanted.values()], atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_greedy_path_takes_the_likeliest_steps(seed: int) -> None:
    encoded = draw(seed)
    found = run(transducer_greedy, encoded, max_symbols=2)
    for i, size in enumerate(FRAMES):
        labels: tuple[int, ...] = ()
        for t in range(size):
            for _ in range(2):
                label = int(log_probs(encoded[i], t, labels).argmax())
                if label == 0 or len(labels) == U:
                    break
                labels += (label,)
        assert tuple(found.labels[i, : found.num_labels[i]].tolist()) == labels
        assert not found.labels[i, found.num_labels[i] :].any()


@pytest.mark.parametrize(
    ("decode", "settings"),
    [
        (transducer_greedy, {"max_symbols": 2}),
        (transducer_beam, {"max_symbols": 2, "num_beams": 3}),
    ],
)
def test_neither_xla_nor_other_utterances_change_a_result(decode: Callable, settings: Any) -> None:
    encoded = draw(0)
    wanted = run(decode, encoded, **settings)
    compiled = run(decode, encoded, xla=True, **settings)
    alone = run(decode, encoded[:1], **settings)
    for a, b, c in zip(wanted, compiled, alone, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5)
        np.testing.assert_allclose(c, a[:1], atol=1e-5)
