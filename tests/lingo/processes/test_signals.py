"""Signals are noted where something would be lost, obeyed at once where not; by all processes."""

import contextlib
import importlib.util
import signal
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from typing import Any

import pytest

from lingo.processes import signals as module
from lingo.processes.processes import ALONE, AgreedSignals
from lingo.processes.signals import STOPPING, Signals, Stop


@pytest.fixture
def clock(monkeypatch):
    """The time that signals are noted at: a list of one number."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def run_in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("number", STOPPING)
def test_the_first_signal_is_the_one_that_counts(number):
    with Signals() as signals:
        assert signals.received is None
        for later in (number, signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(later)
        assert signals.received == number


@pytest.mark.parametrize("number", STOPPING)
def test_what_has_nothing_to_lose_is_left_at_once(number):
    with Signals() as signals:
        with pytest.raises(Stop, match="nothing had to be saved") as caught, signals.stop_at_once():
            signal.raise_signal(number)
        assert caught.value.number == signals.received == number


def test_what_has_nothing_to_lose_is_not_begun_after_a_signal():
    with Signals() as signals:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stop), signals.stop_at_once():
            pytest.fail("begun")


def test_a_library_that_is_being_loaded_is_left_once_it_is():
    class Spec(ModuleSpec):
        """Its name is asked for by the C code that loads an extension module."""

        def __getattribute__(self, name: str) -> object:
            if name == "name":
                before.append(name)
                signal.raise_signal(signal.SIGINT)
                after.append(name)
            return super().__getattribute__(name)

    before: list[str] = []
    after: list[str] = []
    found = importlib.util.find_spec("_json")
    assert found is not None
    assert isinstance(found.loader, ExtensionFileLoader)
    spec = Spec("_json", found.loader, origin=found.origin)

    def load() -> None:
        found.loader.create_module(spec)
        pytest.fail("loaded, and continued")

    with Signals() as signals, pytest.raises(Stop), signals.stop_at_once():
        load()
    assert len(before) > 0
    assert after == before
    assert sys.getprofile() is None


def test_a_signal_while_an_object_is_freed_is_heeded_after_that(capfd):
    class Freed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def free() -> None:
        Freed()
        len("a call")
        pytest.fail("continued")

    with Signals() as signals, pytest.raises(Stop), signals.stop_at_once():
        free()
    assert capfd.readouterr().err == ""
    assert sys.getprofile() is None


@pytest.mark.parametrize("run", [lambda work: work(), run_in_thread], ids=["main", "thread"])
def test_other_errors_while_an_object_is_freed_are_reported_after_runs_that_overlap(
    run, monkeypatch
):
    class Freed:
        def __del__(self) -> None:
            raise ZeroDivisionError

    def work() -> None:
        with Signals() as one, Signals() as other:
            first, second = contextlib.ExitStack(), contextlib.ExitStack()
            first.enter_context(one.stop_at_once())
            second.enter_context(other.stop_at_once())
            first.close()
            second.close()
            with one.stop_at_once():
                Freed()

    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", hook := lambda args: reported.append(args.exc_type))
    run(work)
    assert reported == [ZeroDivisionError]
    assert sys.unraisablehook is hook


def test_a_signal_that_somebody_hid_counts_for_what_comes_after():
    with Signals() as outer, outer.stop_at_once():
        with contextlib.suppress(Stop):  # as a library's callback does
            signal.raise_signal(signal.SIGTERM)
        with Signals() as inner:
            assert inner.received == signal.SIGTERM
            with pytest.raises(Stop), inner.stop_at_once():
                pytest.fail("begun")


def test_left_once_a_second_signal_does_not_disturb_the_clearing_up():
    cleared = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            cleared.append(True)

    with Signals() as signals, pytest.raises(Stop), signals.stop_at_once():
        work()
    assert cleared


def test_after_what_can_be_left_signals_are_noted_again():
    with Signals() as signals:
        with signals.stop_at_once():
            pass
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == signal.SIGTERM


def test_between_two_items_a_signal_ends_the_rest():
    with Signals() as signals:
        items = signals.iterate("abc")
        assert [next(items), next(items)] == ["a", "b"]
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stop):
            next(items)


@pytest.mark.parametrize("first", STOPPING)
def test_an_interrupt_after_a_while_interrupts(first, clock):
    with Signals() as signals:
        signal.raise_signal(first)
        clock[0] = 0.05
        signal.raise_signal(signal.SIGINT)  # the same one, sent to a process and to its group
        clock[0] = 0.5
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) as caught:
            signal.raise_signal(signal.SIGINT)
        assert not isinstance(caught.value, Stop)
        assert signals.received == first


def test_a_hangup_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.received is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_put_back_also_after_an_error():
    before = [signal.getsignal(number) for number in STOPPING]
    with pytest.raises(ZeroDivisionError), Signals():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in STOPPING] == before


def test_another_thread_leaves_the_handlers_alone():
    before = [signal.getsignal(number) for number in STOPPING]
    found = []

    def enter() -> None:
        with Signals() as signals:
            found.append(([signal.getsignal(number) for number in STOPPING], signals.received))

    run_in_thread(enter)
    assert found == [(before, None)]


class Others:
    """Processes of which another one has received a signal, at a certain question."""

    def __init__(self, number: int, *, at: int) -> None:
        self._number, self._at = number, at
        self.asked: list[int] = []

    def max(self, number: int) -> int:
        self.asked.append(number)
        return max(number, self._number if len(self.asked) == self._at else 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(ALONE, name)


def agreed(own: Signals, others: Any) -> AgreedSignals:
    return AgreedSignals(own, others, contextlib.nullcontext)


def test_a_signal_of_another_process_is_heeded_here():
    others = Others(signal.SIGTERM, at=3)
    signals = agreed(Signals(), others)
    with signals.stop_at_once():
        pass
    items = signals.iterate("abc")
    assert next(items) == "a"
    assert (signals.received, others.asked) == (None, [0, 0])
    with pytest.raises(Stop) as stopped:
        next(items)
    assert (stopped.value.number, signals.received) == (15, 15)


def test_a_signal_here_ends_the_wait_and_is_told_to_the_others():
    others = Others(0, at=1)
    with Signals() as own:
        signals = agreed(own, others)
        with pytest.raises(Stop), signals.stop_at_once():
            signal.raise_signal(signal.SIGINT)
    assert (signals.received, others.asked) == (signal.SIGINT, [signal.SIGINT])


def test_an_error_and_what_one_process_does_alone_ask_nobody():
    others = Others(15, at=1)
    with pytest.raises(KeyError), agreed(Signals(), others).stop_at_once():
        raise KeyError
    assert list(agreed(Signals(), others).iterate([1, 2], joint=False)) == [1, 2]
    assert others.asked == []
