"""Signals that ask a process to stop: it leaves at once, or finishes what it has in hand.

    with Signals() as signals:
        with signals.leaving():             # a signal ends this wherever it is: nothing is lost
            prepare()
        while signals.received is None:     # a signal is noted
            step()

What Python runs in other threads, or calls in C, it cannot be interrupted in: then a signal is
heeded at the next line of Python in the main thread. A library that is being loaded is not
interrupted either: C++ that calls Python to set itself up may crash of an exception. What Python
cannot raise, because it frees an object, is raised after that.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from importlib.machinery import ExtensionFileLoader
from types import FrameType, TracebackType
from typing import Any, TypeVar

_T = TypeVar("_T")

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_AGAIN_SECONDS = 0.5  # a signal may come twice at once: to a process, and to the group it is in


class Stop(KeyboardInterrupt):
    """A signal ends what has nothing to lose.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; nothing had to be saved")
        self.number = number


def restore_handlers() -> None:
    """Puts Python's handlers back, where a library has put one of its own in their place."""
    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            if (handler := signal.getsignal(number)) is not None:
                signal.signal(number, handler)


class Signals:
    """Heeds SIGINT, SIGTERM and SIGHUP while it is entered, instead of dying of them.

    A second SIGINT, half a second after the first signal or later, raises KeyboardInterrupt:
    someone is waiting at a terminal. SIGHUP stays ignored where it is, as under `nohup`. Outside
    the main thread nothing is heeded, because Python delivers signals to that thread only.

    Attributes:
        received: number of the first signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._since = 0.0
        self._is_leaving = False
        self._before: dict[int, Any] = {}
        self._hook = sys.unraisablehook

    def __enter__(self) -> Signals:
        """Takes over; a signal that came before counts, whoever hid the Stop that it raised."""
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue
                before = self._before[number] = signal.signal(number, self._heed)
                if isinstance(outer := getattr(before, "__self__", None), Signals):
                    self.received = self.received or outer.received
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def leaving(self) -> Iterator[None]:
        """Raises Stop inside as soon as a signal comes, and at once if one has come before.

        Libraries that hide it, as some do while they are imported, fail of it later: that is Stop.
        """
        self.check()
        self._hook, sys.unraisablehook = sys.unraisablehook, self._raise_later
        self._is_leaving = True
        try:
            yield
        except Exception:
            self.check()
            raise
        finally:
            self._is_leaving = False
            sys.unraisablehook = self._hook

    def check(self) -> None:
        """Raises Stop if a signal has come."""
        if self.received is not None:
            raise Stop(self.received)

    def between(self, items: Iterable[_T], *, together: bool = True) -> Iterator[_T]:
        """Yields items; instead of the next one it raises Stop if a signal has come.

        Args:
            items: what to yield.
            together: whether all processes of a run, if it has several, pass here as often.
        """
        del together  # there is one
        for item in items:
            self.check()
            yield item

    def _heed(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._since = number, time.monotonic()
            if self._is_leaving:
                self._leave(frame)
        elif number == signal.SIGINT and time.monotonic() - self._since >= _AGAIN_SECONDS:
            raise KeyboardInterrupt

    def _leave(self, frame: FrameType | None) -> None:
        """Raises Stop, or waits for the next call or return in Python if nothing would catch it."""
        if not _is_deaf(frame):
            sys.setprofile(None)
            self.check()
        sys.setprofile(self._look_again)

    def _look_again(self, frame: FrameType, event: str, argument: Any) -> None:
        """Leaves where Python has come to; it calls this at every call and return."""
        del event, argument
        if self._is_leaving:
            self._leave(frame)
        else:
            sys.setprofile(None)

    def _raise_later(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Keeps a Stop that Python could not raise; says what else it could not, as always."""
        if isinstance(unraisable.exc_value, Stop):
            sys.setprofile(self._look_again)
        else:
            self._hook(unraisable)


_DEAF = (
    ExtensionFileLoader.create_module.__code__,
    ExtensionFileLoader.exec_module.__code__,
    Signals._raise_later.__code__,
)


def _is_deaf(frame: FrameType | None) -> bool:
    """Returns whether what Python does in a frame was called by C that heeds no exception."""
    while frame is not None:
        if frame.f_code in _DEAF:
            return True
        frame = frame.f_back
    return False
