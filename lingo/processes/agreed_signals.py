"""Signals of several processes: if one process receives a signal, all stop at the same place.

Processes compute steps together, so if one stopped alone the others would wait for it. Where
`Signals` may raise Stop, all processes ask each other first, each of them equally often.
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
        received: number of a signal that all processes know of, or None.
    """

    def __init__(
        self, own: Signals, processes: Processes, pause: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Asks nothing yet.

        Args:
            own: handles the signals of this process.
            processes: the processes, which agree.
            pause: returns a context for waiting for the others, in which a watchdog is paused.
        """
        super().__init__()
        self._own, self._processes, self._pause = own, processes, pause

    @contextlib.contextmanager
    def stop_at_once(self) -> Iterator[None]:
        """Lets a signal end the block; then raises Stop if any process has received one."""
        with contextlib.suppress(Stop), self._own.stop_at_once():
            yield
        self.check()

    def check(self) -> None:
        """Raises Stop if any process has received a signal; all processes must call it."""
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
