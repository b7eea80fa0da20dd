"""The watchdog counts from the first steps on, not in pauses, and not while something compiles.

Below zero stands what is slow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.trainer.guard.hang import COUNTER, Watchdog, Watched


def count(watchdog: Watchdog) -> int:
    return COUNTER.unpack_from(watchdog._memory)[0]


class Recorder:
    """A program that notes what the watchdog expects while it is called."""

    def __init__(self) -> None:
        self.watchdog = Watchdog()
        self.seen: list[int] = []

    def train(self, batches: Any) -> dict[str, Any]:
        self.seen.append(count(self.watchdog))
        return {"scalars": {}, "batches": batches}

    def evaluate(self, batch: Any, *, weights: str = "trained") -> dict[str, Any]:
        self.seen.append(count(self.watchdog))
        return {"weights": weights}

    def decode(self, batch: Any, sampling: Any, *, seed: int = 0, weights: str = "trained") -> Any:
        self.seen.append(count(self.watchdog))
        return {"seed": seed}


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def program(recorder: Recorder) -> Watched:
    return Watched(recorder, recorder.watchdog)  # pyright: ignore[reportArgumentType]


def batch(length: int) -> dict[str, np.ndarray]:
    return {"tokens": np.zeros([2, length])}


def test_nothing_is_expected_before_it_is_armed() -> None:
    with Watchdog() as watchdog:
        watchdog.beat()
        for quiet in (watchdog.paused, watchdog.slow):
            with quiet():
                assert count(watchdog) == 0
        assert count(watchdog) == 0
    assert count(watchdog) == 0


def test_less_is_expected_after_it_is_left_whatever_comes() -> None:
    with Watchdog() as watchdog:
        watchdog.arm()
        assert count(watchdog) > 0
    left = count(watchdog)
    assert left < 0
    watchdog.beat()
    assert count(watchdog) == left


def test_every_beat_is_another_number() -> None:
    watchdog = Watchdog()
    watchdog.arm()
    numbers = [count(watchdog)]
    for _ in range(3):
        watchdog.beat()
        numbers.append(count(watchdog))
    with watchdog.paused():
        pass
    assert len({*numbers, count(watchdog)}) == 5


def test_less_is_expected_of_what_is_slow_and_more_after_it_also_after_an_error() -> None:
    watchdog = Watchdog()
    watchdog.arm()
    numbers = []
    for _ in range(2):
        with watchdog.slow():
            numbers.append(count(watchdog))
        assert count(watchdog) > 0
    with pytest.raises(ZeroDivisionError), watchdog.slow():
        1 / 0  # noqa: B018
    assert count(watchdog) > 0
    assert max(numbers) < 0
    assert len(set(numbers)) == 2


def test_nothing_is_expected_in_a_pause_and_something_after_it_also_after_an_error() -> None:
    watchdog = Watchdog()
    watchdog.arm()
    with watchdog.paused():
        assert count(watchdog) == 0
    assert count(watchdog) > 0
    with pytest.raises(ZeroDivisionError), watchdog.paused():
        1 / 0  # noqa: B018
    assert count(watchdog) > 0


def test_the_first_steps_arm_it(recorder: Recorder, program: Watched) -> None:
    program.evaluate(batch(3))
    assert count(recorder.watchdog) == 0
    program.train(batch(3))
    assert recorder.seen == [0, 0]
    assert count(recorder.watchdog) > 0


def test_a_call_is_watched_unless_its_shapes_are_new(recorder: Recorder, program: Watched) -> None:
    for length in (3, 3, 4, 4, 3):
        program.train(batch(length))
    assert [bool(c) for c in recorder.seen] == [False, True, False, True, True]
    recorder.seen.clear()
    for weights in ("trained", "ema", "trained"):
        assert program.evaluate(batch(3), weights=weights) == {"weights": weights}
    assert [bool(c) for c in recorder.seen] == [False, False, True]
    recorder.seen.clear()
    some, other = object(), object()
    for sampling in (some, other, some):
        assert program.decode(batch(3), sampling, seed=7) == {"seed": 7}  # pyright: ignore[reportArgumentType]
    assert [bool(c) for c in recorder.seen] == [False, False, True]


def test_a_watched_call_beats_before_and_after(recorder: Recorder, program: Watched) -> None:
    program.train(batch(3))
    armed = count(recorder.watchdog)
    program.train(batch(3))
    assert armed < recorder.seen[-1] < count(recorder.watchdog)
