"""Incidents: the last anomalous steps, reported when they begin, written when they end a run."""

from __future__ import annotations

import collections
import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lingo.checkpoints.run_counters import Health
from lingo.storage.files import StorageError, write_text
from lingo.trainer.guard.guard import Anomaly

DUMP = "numeric_failure.json"

_MOST = 100  # steps that are kept

_log = logging.getLogger(__name__)


class Incident(NamedTuple):
    """A step that was not finite, or whose loss was a spike."""

    step: int  # the number of steps done, with this one
    batch: int  # the index of its batch in the run
    what: str  # a description of what was wrong
    first_non_finite: str | None  # in the order of `learner/finite.py`; None for a spike
    scalars: dict[str, Any]  # the scalars of its report
    examples: list[int]  # the `example_id` of its batch, of all processes


class Incidents:
    """Keeps the last anomalous steps."""

    def __init__(self, file: Path | None, *, report: Callable[[str], None]) -> None:
        """Keeps nothing yet; without a file another process writes those that end the run."""
        self._file, self._report = file, report
        self._last: collections.deque[Incident] = collections.deque(maxlen=_MOST)

    def add(
        self,
        step: int,
        scalars: Mapping[str, float],
        *,
        number: int,
        examples: list[int],
        health: Health,
        not_finite: str | None,
    ) -> None:
        """Adds an anomalous step, and reports it if it is the first in a row.

        `number` is the index of its batch in the run, `health` that after the step; `not_finite`,
        the first quantity that is not finite, is None for a spike.
        """
        if not_finite:
            what = f"{not_finite} is not finite; nothing was changed"
        else:
            loss, level = scalars["loss/total"], health.level
            deviations = f"{level.deviations(loss):.1f} deviations above {level.mean:.4g}"
            what = f"loss {loss:.4g} is a spike: {deviations}"
        shown = {tag: _json_number(value) for tag, value in scalars.items()}
        self._last.append(Incident(step, number, what, not_finite, shown, examples))
        if health.num_anomalous == 1:
            self._report(f"step {step}  {what}")

    def cut(self, step: int) -> None:
        """Removes steps after `step`, which will be done again on other data."""
        self._last = collections.deque((one for one in self._last if one.step <= step), _MOST)

    def write(self, anomaly: Anomaly) -> str:
        """Writes the steps that ended a run to the file, and returns the error text.

        A run that is started again unchanged ends without doing a step; then the old file is kept.
        """
        last = range(anomaly.sound_step + 1, anomaly.step + 1)
        steps = [one._asdict() for one in self._last if one.step in last]
        first = next((one["first_non_finite"] for one in steps if one["first_non_finite"]), None)
        message = f"step {anomaly.step}: {anomaly.reason}" + (f"; first {first}" if first else "")
        if self._file is None:
            return f"{message}. {anomaly.advice}"
        if steps:
            dump = {
                "step": anomaly.step,
                "reason": anomaly.reason,
                "first_non_finite": first,
                "advice": anomaly.advice,
                "steps": steps,
            }
            try:
                write_text(self._file, json.dumps(dump, indent=1) + "\n")
            except StorageError as error:
                _log.error("%s", error)
        where = f" {self._file} has the steps and their examples." if self._file.exists() else ""
        return f"{message}.{where} {anomaly.advice}"


def _json_number(value: float) -> float | str:
    """Returns a number for JSON: itself, or a string if it is not finite."""
    return value if math.isfinite(value) else str(value)
