"""Signals that ask a process to stop: it leaves at once, or finishes what it has in hand.

    with Signals() as signals:
        with signals.stop_at_once():        # a signal ends this wherever it is: nothing is lost
            prepare()
        while signals.received is None:     # a signal is noted
            step()

Python delivers signals to the main thread only, between two of its instructions: C code and other
threads go on until then. Two places cannot be left by an exception. C++ that calls Python while a
library is loaded may crash of it, and Python drops what is raised while it frees an object. There
Stop is raised a little later: at the next call or return in Python that is outside (`setprofile`).
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
        self._stops_at_once = False
        self._handlers_before: dict[int, Any] = {}
        self._hook_before = sys.unraisablehook

    def __enter__(self) -> Signals:
        """Takes over; a signal that came before counts, whoever hid the Stop that it raised."""
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue
                before = self._handlers_before[number] = signal.signal(number, self._heed)
                if isinstance(outer := getattr(before, "__self__", None), Signals):
                    self.received = self.received or outer.received
            # Not in `stop_at_once`: those of two threads overlap, and each would restore the other.
            self._hook_before, sys.unraisablehook = sys.unraisablehook, self._keep_stop
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._handlers_before:
            return
        sys.unraisablehook = self._hook_before
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def stop_at_once(self) -> Iterator[None]:
        """Raises Stop inside as soon as a signal comes, and at once if one has come before.

        Libraries that hide it, as some do while they are imported, fail of it later: that is Stop.
        """
        self.check()
        self._stops_at_once = True
        try:
            yield
        except Exception:
            self.check()
            raise
        finally:
            self._stops_at_once = False

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
            if self._stops_at_once:
                self._stop(frame)
        elif number == signal.SIGINT and time.monotonic() - self._since >= _AGAIN_SECONDS:
            raise KeyboardInterrupt

    def _stop(self, frame: FrameType | None) -> None:
        """Raises Stop, or waits for the next call or return in Python if nothing would catch it."""
        if not _drops_exceptions(frame):
            sys.setprofile(None)
            self.check()
        sys.setprofile(self._stop_later)

    def _stop_later(self, frame: FrameType, event: str, argument: Any) -> None:
        """Stops where Python has come to; Python calls this at every call and return."""
        del event, argument
        if self._stops_at_once:
            self._stop(frame)
        else:
            sys.setprofile(None)

    def _keep_stop(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Raises a Stop later that Python has dropped; reports every other error as before."""
        if isinstance(unraisable.exc_value, Stop):
            sys.setprofile(self._stop_later)
        else:
            self._hook_before(unraisable)


_DROPS_EXCEPTIONS = (
    ExtensionFileLoader.create_module.__code__,
    ExtensionFileLoader.exec_module.__code__,
    Signals._keep_stop.__code__,
)


def _drops_exceptions(frame: FrameType | None) -> bool:
    """Returns whether a frame was called by C code that an exception must not reach."""
    while frame is not None:
        if frame.f_code in _DROPS_EXCEPTIONS:
            return True
        frame = frame.f_back
    return False
