"""Signals that ask a process to stop: it stops at once, or finishes its current step first.

    with Signals() as signals:
        with signals.stop_at_once():        # a signal ends this block at any point: nothing is lost
            prepare()
        while signals.received is None:     # a signal is only recorded
            step()

Python delivers signals to the main thread only, between two bytecode instructions. In two places
the handler must not raise an exception: C++ code that calls Python while it loads a library may
crash, and Python drops exceptions raised while it frees an object. In these places Stop is raised
later: at the next Python call or return outside them (`setprofile`).
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import Any, TypeVar

_T = TypeVar("_T")

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A second SIGINT within this time is the same one: sent to the process, and to its group.
_AGAIN_SECONDS = 0.5


class Stop(KeyboardInterrupt):
    """Raised when signal `number` ends work that has nothing to save."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; nothing had to be saved")
        self.number = number


def restore_handlers() -> None:
    """Reinstalls Python's handlers where a library has installed its own."""
    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            if (handler := signal.getsignal(number)) is not None:
                signal.signal(number, handler)


class Signals:
    """Handles SIGINT, SIGTERM and SIGHUP inside its `with` block, so that they do not kill.

    `received` is the number of the first signal, or None. A second SIGINT, half a second after the
    first signal or later, raises KeyboardInterrupt, because someone is waiting at a terminal. If
    SIGHUP is ignored, as under `nohup`, it stays ignored. Outside the main thread the block does
    nothing.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._since = 0.0
        self._stops_at_once = False
        self._handlers_before: dict[int, Any] = {}
        self._hook_before = sys.unraisablehook

    def __enter__(self) -> Signals:
        """Installs handlers; a signal that an outer `Signals` has received counts as received."""
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue
                before = self._handlers_before[number] = signal.signal(number, self._heed)
                if isinstance(outer := getattr(before, "__self__", None), Signals):
                    self.received = self.received or outer.received
            # Not in `stop_at_once`: if two threads enter it, each would restore the other's hook.
            self._hook_before, sys.unraisablehook = sys.unraisablehook, self._keep_stop
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not self._handlers_before:
            return
        sys.unraisablehook = self._hook_before
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def stop_at_once(self) -> Iterator[None]:
        """Raises Stop in the body when a signal arrives; at once if a signal has arrived before.

        Some libraries catch Stop while they are imported, and fail later with another error, which
        is then replaced by Stop.
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

    def request(self) -> None:
        """Stops as if SIGTERM had arrived."""
        self._heed(signal.SIGTERM, None)

    def check(self) -> None:
        """Raises Stop if a signal has arrived."""
        if self.received is not None:
            raise Stop(self.received)

    def iterate(self, items: Iterable[_T], *, joint: bool = True) -> Iterator[_T]:
        """Yields items; raises Stop instead of the next item if a signal has arrived.

        `joint` says whether all processes of the run do this iteration with equally many items.
        """
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
        """Raises Stop; where it would be dropped, defers it to the next Python call or return."""
        if not _drops_exceptions(frame):
            sys.setprofile(None)
            self.check()
        sys.setprofile(self._stop_later)

    def _stop_later(self, frame: FrameType, event: str, argument: Any) -> None:
        """Retries a deferred Stop; Python calls this at every call and return."""
        if self._stops_at_once:
            self._stop(frame)
        else:
            sys.setprofile(None)

    def _keep_stop(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Raises a Stop that Python has dropped later; passes other errors to the previous hook."""
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
    """Returns whether a frame or its callers include code that an exception must not reach."""
    while frame is not None:
        if frame.f_code in _DROPS_EXCEPTIONS:
            return True
        frame = frame.f_back
    return False
