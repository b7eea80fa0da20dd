"""Signals that ask a run to stop: it finishes the steps in hand, saves, and ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Notes SIGINT and SIGTERM while it is entered, instead of dying of them.

    A second SIGINT interrupts at once: someone is waiting at a terminal. Outside the main thread
    nothing is noted, because Python delivers signals to that thread only.

    Attributes:
        received: number of the first signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _STOPPING}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or number
