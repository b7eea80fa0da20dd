"""The sinks of a run: each gets every report, and none can end the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lingo.metrics.sink import ParameterValue, Sink

_log = logging.getLogger(__name__)


class Sinks:
    """Calls all sinks; the first exception of one in a row is logged as a warning."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        """Calls nothing yet."""
        self._sinks = sinks
        self._failing: set[int] = set()  # indices of sinks

    def start(self, directory: Path, parameters: Mapping[str, ParameterValue]) -> None:
        """Calls `start` of all sinks."""
        self._call_all(lambda sink: sink.start(directory, parameters))

    def write(self, row: Mapping[str, Any]) -> None:
        """Calls `write` of all sinks with a row of metrics.jsonl."""
        values = {tag: value for tag, value in row.items() if tag not in ("step", "time")}
        self._call_all(lambda sink: sink.write(row["step"], values, time=row["time"]))

    def end(self, state: str) -> None:
        """Calls `end` of all sinks."""
        self._call_all(lambda sink: sink.end(state))

    def _call_all(self, call: Callable[[Sink], None]) -> None:
        for number, sink in enumerate(self._sinks):
            try:
                call(sink)
            except Exception as error:  # noqa: BLE001  # whatever a service raises
                if number not in self._failing:
                    name, kind = type(sink).__name__, type(error).__name__
                    _log.warning("%s lacks reports: %s: %s", name, kind, error)
                self._failing.add(number)
            else:
                self._failing.discard(number)
