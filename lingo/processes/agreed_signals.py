"""Signals of several processes: what one of them receives, all heed, at the same place.

Steps are done together, so a process that left by itself would leave the others waiting. Wherever
`Signals` may raise Stop, all processes ask each other instead, as often as each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

from lingo.processes.processes import Processes
from lingo.processes.signals import Signals, Stop

_T = TypeVar("_T")


class AgreedSignals(Signals):
    """The signals of this process and of all others; it installs no handlers of its own.

    Attributes:
        received: number of a signal that all know of, or None.
    """

    def __init__(
        self, own: Signals, processes: Processes, pause: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Heeds nothing yet.

        Args:
            own: heeds those of this process.
            processes: which agree.
            pause: returns what is entered while this process waits for the others: a watchdog
                expects nothing then.
        """
        super().__init__()
        self._own, self._processes, self._pause = own, processes, pause

    @contextlib.contextmanager
    def stop_at_once(self) -> Iterator[None]:
        """Lets a signal end what stands inside, and raises Stop if one has come to any process."""
        with contextlib.suppress(Stop), self._own.stop_at_once():
            yield
        self.check()

    def check(self) -> None:
        """Raises Stop if a signal has come to any process; all processes have to ask."""
        with self._pause():
            number = self._processes.most(self._own.received or 0)
        if number:
            self.received = number
            raise Stop(number)

    def between(self, items: Iterable[_T], *, together: bool = True) -> Iterator[_T]:
        if not together:
            yield from items
            return
        yield from super().between(items)
