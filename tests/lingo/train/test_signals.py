"""Signals are noted, not died of; a second interrupt is obeyed at once."""

from __future__ import annotations

import signal
import threading

import pytest

from lingo.train.signals import Signals

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", BOTH)
def test_the_first_signal_is_noted(number: int) -> None:
    with Signals() as signals:
        assert signals.received is None
        signal.raise_signal(number)
        assert signals.received == number


def test_the_first_signal_is_the_one_that_counts() -> None:
    with Signals() as signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
        assert signals.received == signal.SIGINT


@pytest.mark.parametrize("first", BOTH)
def test_an_interrupt_after_another_signal_interrupts(first: int) -> None:
    with Signals() as signals:
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signals.received == first


def test_handlers_are_put_back_also_after_an_error() -> None:
    before = [signal.getsignal(number) for number in BOTH]
    with pytest.raises(ZeroDivisionError), Signals():
        1 / 0  # noqa: B018
    assert [signal.getsignal(number) for number in BOTH] == before


def test_another_thread_leaves_the_handlers_alone() -> None:
    before = [signal.getsignal(number) for number in BOTH]
    found = []

    def enter() -> None:
        with Signals() as signals:
            found.append(([signal.getsignal(number) for number in BOTH], signals.received))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [(before, None)]
