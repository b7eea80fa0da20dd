"""The watchdog counts from the first steps on, not in pauses, and not while something compiles."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from lingo.runtimes.runtime import Program
from lingo.trainer.guard import hang
from lingo.trainer.guard.hang import SLOW_FACTOR, Watchdog, watch_program


class Timer:
    """Stands in for `faulthandler`, and knows when it would write stacks.

    Attributes:
        seconds: until the next time; None: never.
        starts: how often it was started.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.starts = 0

    def dump_traceback_later(self, timeout: float, *, repeat: bool, file: int) -> None:
        assert repeat
        assert os.pread(file, 100, 0) == b"%g\n" % (2 * timeout)
        self.seconds = timeout
        self.starts += 1

    def cancel_dump_traceback_later(self) -> None:
        self.seconds = None


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Timer:
    timer = Timer()
    monkeypatch.setattr(hang, "faulthandler", timer)
    return timer


@pytest.fixture
def watchdog(timer: Timer) -> Watchdog:
    """Expects a sign of life every two seconds."""
    return Watchdog(2, os.memfd_create("stacks"))


class Recorder:
    """A program that notes what the watchdog expects while it is called."""

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        self.seen: list[float | None] = []

    def train(self, batches: Any) -> dict[str, Any]:
        self.seen.append(self.timer.seconds)
        return {"scalars": {}, "batches": batches}

    def evaluate(self, batch: Any, *, weights: str = "trained") -> dict[str, Any]:
        self.seen.append(self.timer.seconds)
        return {"weights": weights}

    def decode(self, batch: Any, sampling: Any, *, seed: int = 0, weights: str = "trained") -> Any:
        self.seen.append(self.timer.seconds)
        return {"seed": seed}


@pytest.fixture
def recorder(timer: Timer) -> Recorder:
    return Recorder(timer)


@pytest.fixture
def program(recorder: Recorder, watchdog: Watchdog) -> Program:
    return watch_program(recorder, watchdog)  # pyright: ignore[reportArgumentType]


def batch(length: int) -> dict[str, np.ndarray]:
    return {"tokens": np.zeros([2, length])}


def test_nothing_is_expected_before_it_is_armed(timer: Timer, watchdog: Watchdog) -> None:
    with watchdog:
        watchdog.beat()
        for quiet in (watchdog.pause, watchdog.extend):
            with quiet():
                pass
    assert timer.starts == 0


def test_nothing_is_expected_where_nobody_watches(timer: Timer) -> None:
    with Watchdog() as watchdog:
        watchdog.arm()
    assert timer.starts == 0


def test_less_is_expected_after_it_is_left_whatever_comes(timer: Timer, watchdog: Watchdog) -> None:
    with watchdog:
        watchdog.arm()
        assert timer.seconds == 1
    watchdog.beat()
    assert timer.seconds == SLOW_FACTOR


def test_every_beat_starts_the_timer_and_empties_the_file(timer: Timer, watchdog: Watchdog) -> None:
    for starts in (1, 2, 3):
        watchdog.arm()
        assert (timer.starts, timer.seconds) == (starts, 1)
        os.write(watchdog._file, b"Timeout (0:00:01)!\n")


def test_less_is_expected_of_what_is_slow_and_more_after_it_also_after_an_error(timer, watchdog):
    watchdog.arm()
    with watchdog.extend():
        assert timer.seconds == SLOW_FACTOR
    assert timer.seconds == 1
    with pytest.raises(ZeroDivisionError), watchdog.extend():
        1 / 0  # noqa: B018
    assert timer.seconds == 1


def test_nothing_is_expected_in_a_pause_and_something_after_it_also_after_an_error(timer, watchdog):
    watchdog.arm()
    with watchdog.pause():
        assert timer.seconds is None
    assert timer.seconds == 1
    with pytest.raises(ZeroDivisionError), watchdog.pause():
        1 / 0  # noqa: B018
    assert timer.seconds == 1


def test_the_first_steps_arm_it(timer: Timer, program: Program) -> None:
    program.evaluate(batch(3))
    assert timer.seconds is None
    program.train(batch(3))
    assert timer.seconds == 1


def test_a_call_is_watched_unless_its_shapes_are_new(recorder: Recorder, program: Program) -> None:
    for length in (3, 3, 4, 4, 3):
        program.train(batch(length))
    assert recorder.seen == [None, 1, None, 1, 1]
    recorder.seen.clear()
    for weights in ("trained", "ema", "trained"):
        assert program.evaluate(batch(3), weights=weights) == {"weights": weights}
    assert recorder.seen == [None, None, 1]
    recorder.seen.clear()
    some, other = object(), object()
    for sampling in (some, other, some):
        assert program.decode(batch(3), sampling, seed=7) == {"seed": 7}  # pyright: ignore[reportArgumentType]
    assert recorder.seen == [None, None, 1]


def test_a_watched_call_beats_before_and_after(timer, recorder, program):
    program.train(batch(3))
    before = timer.starts
    program.evaluate(batch(3))  # compiles
    program.evaluate(batch(3))
    assert timer.starts == before + 3
