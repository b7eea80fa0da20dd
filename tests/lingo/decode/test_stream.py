"""Streamed sampling: the tokens of `Sampling`, each told as it is drawn, until it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.decode.sampling import Sampling
from lingo.decode.stream import STREAM, StreamedSampling
from lingo.ops import random
from tests.lingo.decode.scores import Model, batch_of, decode

MODEL = Model(seed=3, vocab_size=7)
SETTINGS: dict[str, Any] = {"max_tokens": 9, "num_samples": 3, "temperature": 1.5}


@pytest.fixture(scope="module")
def stream() -> Callable[..., Any]:
    """Decodes [4, 2] and tells a listener; all calls are of one compiled program."""
    decoding = StreamedSampling.params(**SETTINGS).build()

    @tf.function(autograph=False)
    def program(batch: Any, key: random.Key) -> Any:
        return decoding.decode(MODEL.step, {"past": tf.zeros([1], tf.int32)}, batch, key)

    def stream(listener: Callable[[np.ndarray], bool], seed: int = 0) -> np.ndarray:
        with decoding.listen(listener) as ids:
            batch = batch_of([[4, 2]]) | {STREAM: tf.constant(ids)}
            return program(batch, random.root_key(seed))["tokens"].numpy()[0]

    return stream


def test_the_tokens_are_those_of_sampling_in_order(stream) -> None:
    for seed in range(3):
        told: list[np.ndarray] = []

        def listen(tokens: np.ndarray, told: list[np.ndarray] = told) -> bool:
            told.append(tokens)
            return False

        found = stream(listen, seed)
        key, sampling = random.root_key(seed), Sampling.params(**SETTINGS).build()
        expected, _ = decode(MODEL, sampling, [[4, 2]], key=key)
        np.testing.assert_array_equal(found, expected[0])
        np.testing.assert_array_equal(np.stack(told, axis=1), found[:, : len(told)])


@pytest.mark.parametrize("num", [1, 2, 4])
def test_no_token_is_drawn_after_a_listener_stops(stream, num: int) -> None:
    told: list[np.ndarray] = []

    def listen(tokens: np.ndarray) -> bool:
        told.append(tokens)
        return len(told) == num

    stream(listen)
    assert len(told) == num


def test_each_of_two_streams_at_a_time_hears_its_own_tokens(stream) -> None:
    told: dict[int, list[np.ndarray]] = {0: [], 1: []}

    def inner(tokens: np.ndarray) -> bool:
        told[1].append(tokens)
        return False

    def outer(tokens: np.ndarray) -> bool:
        if not told[0]:
            stream(inner, 1)  # while the outer one waits
        told[0].append(tokens)
        return False

    found = stream(outer, 0)
    np.testing.assert_array_equal(np.stack(told[0], axis=1), found[:, : len(told[0])])
    alone = stream(lambda _: False, 1)
    np.testing.assert_array_equal(np.stack(told[1], axis=1), alone[:, : len(told[1])])
