"""The part of Fiddle that lingo uses: the base class of Params, and the history of each field."""
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import fiddle
from fiddle import history
from fiddle._src import building
from fiddle.history import HistoryEntry, Location, add_exclude_location

__all__ = [
    "Config",
    "History",
    "HistoryEntry",
    "Location",
    "add_exclude_location",
    "is_building",
    "record_location",
]

if TYPE_CHECKING:

    class Config:
        """The configuration of a class; its fields are attributes."""

        def __init__(self, fn_or_cls: type[Any], /) -> None: ...

        def __flatten__(self) -> tuple[tuple[Any, ...], Any]: ...

    class History(dict[str, list[HistoryEntry]]):
        """Field -> an entry for each value that it was set to, in order."""

        def add_new_value(self, param_name: str, value: Any) -> None: ...

else:
    Config, History = fiddle.Config, history.History

_LOCATION = threading.RLock()


@contextlib.contextmanager
def record_location(location: Location) -> Generator[None]:
    """Makes values that are set within this context record `location`, not the caller's line.

    Fiddle keeps one location per process, so threads need a lock.
    """
    with _LOCATION, history.custom_location(lambda: location):
        yield


def is_building() -> bool:
    """Returns whether `fdl.build` is running in this thread."""
    return building._state.in_build
