"""The observers of a run: each gets every event, in order."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Concatenate, ParamSpec

from lingo.config.base.errors import LingoError
from lingo.config.roots.user_line import error_prefix
from lingo.contract import ObservedRun, RunEvents, RunObserver

_P = ParamSpec("_P")

_log = logging.getLogger(__name__)


class ObserverError(LingoError):
    """A required observer has raised an exception."""


class Observers:
    """Passes events to the experiment's observers, then to lingo's own observers.

    So an evaluation is recorded only after the experiment's observers have seen it. A run that is
    killed before the record repeats the evaluation.
    """

    def __init__(self, run: ObservedRun, observers: Sequence[RunObserver]) -> None:
        """Calls nothing yet; `observers` are the experiment's observers."""
        self._run, self._observers = run, list[RunEvents](observers)

    def add(self, own: RunEvents) -> None:
        """Adds one of lingo's own observers, whose exceptions are not caught."""
        self._observers.append(own)

    def tell(
        self,
        event: Callable[Concatenate[RunEvents, ObservedRun, _P], None],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> None:
        """Calls an event's method, such as `RunEvents.on_report`, on every observer.

        If an observer of the experiment raises an exception, the observer is left out from here on.
        If the observer `is_required`, the exception ends the run: as it is if it is a LingoError,
        else as an ObserverError.
        """
        for observer in [*self._observers]:
            try:
                getattr(observer, event.__name__)(self._run, *args, **kwargs)
            except Exception as error:
                if not isinstance(observer, RunObserver):
                    raise
                self._observers.remove(observer)
                self._report(observer, error)

    def _report(self, observer: RunObserver, error: Exception) -> None:
        """Raises a required observer's error; logs any other observer's."""
        text = f"{type(observer).__name__}: {type(error).__name__}: {error}"
        if not observer.p.is_required:
            _log.warning("%sleft out from here on: %s", error_prefix(error), text)
        elif isinstance(error, LingoError):
            raise error
        else:
            raise ObserverError(f"a required observer failed: {text}") from error

    @contextlib.contextmanager
    def start(self, step: int) -> Iterator[None]:
        """Sends `on_start` to all observers, and `on_end` if an error leaves the block."""
        self.tell(RunEvents.on_start, step)
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(LingoError):  # an error of `on_end` would hide `error`
                state = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
                self.tell(RunEvents.on_end, state)
            raise
