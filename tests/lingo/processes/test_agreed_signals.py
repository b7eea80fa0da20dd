"""A signal that one process receives stops all of them at the same place."""

from __future__ import annotations

import contextlib
import signal

import pytest

from lingo.processes.processes import ALONE, AgreedSignals, Processes
from lingo.processes.signals import Signals, Stop


class Others:
    """Processes of which another one has received a signal, at a certain question."""

    def __init__(self, number: int, *, at: int) -> None:
        self._number, self._at = number, at
        self.asked: list[int] = []

    def max(self, number: int) -> int:
        self.asked.append(number)
        return max(number, self._number if len(self.asked) == self._at else 0)

    def __getattr__(self, name: str) -> object:
        return getattr(ALONE, name)


def agreed(own: Signals, others: object) -> AgreedSignals:
    processes: Processes = others  # type: ignore[assignment]
    return AgreedSignals(own, processes, contextlib.nullcontext)


def test_without_a_signal_all_go_on() -> None:
    others = Others(0, at=1)
    signals = agreed(Signals(), others)
    with signals.stop_at_once():
        pass
    assert list(signals.iterate([1, 2])) == [1, 2]
    assert (signals.received, others.asked) == (None, [0, 0, 0])


def test_a_signal_of_another_process_is_heeded_here() -> None:
    signals = agreed(Signals(), Others(signal.SIGTERM, at=2))
    items = signals.iterate("abc")
    assert next(items) == "a"
    with pytest.raises(Stop) as stopped:
        next(items)
    assert (stopped.value.number, signals.received) == (15, 15)


def test_a_signal_here_ends_the_wait_and_is_told_to_the_others() -> None:
    others = Others(0, at=1)
    with Signals() as own:
        signals = agreed(own, others)
        with pytest.raises(Stop), signals.stop_at_once():
            signal.raise_signal(signal.SIGINT)
    assert (signals.received, others.asked) == (signal.SIGINT, [signal.SIGINT])


def test_an_error_is_no_question() -> None:
    others = Others(0, at=1)
    with pytest.raises(KeyError), agreed(Signals(), others).stop_at_once():
        raise KeyError
    assert others.asked == []


def test_what_one_process_does_alone_asks_nobody() -> None:
    others = Others(15, at=1)
    assert list(agreed(Signals(), others).iterate([1, 2], joint=False)) == [1, 2]
    assert others.asked == []
