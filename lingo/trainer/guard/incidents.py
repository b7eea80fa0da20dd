"""What went wrong in the last steps: said when it begins, and written down when it ends a run."""

from __future__ import annotations

import collections
import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lingo.checkpoints.position import Health, Level
from lingo.storage.files import StorageError, write_text
from lingo.trainer.guard.guard import Anomaly

DUMP = "numeric_failure.json"

_MOST = 100  # steps that are remembered

_log = logging.getLogger(__name__)


class Incident(NamedTuple):
    """A step that was not finite, or whose loss was a spike.

    Attributes:
        step: steps done with it.
        batch: number of its batch in the run.
        what: was wrong, in words.
        first_not_finite: the first quantity that is not, by the order of `finite`; None for a
            spike.
        scalars: of its report.
        examples: the `example_id` of its batch, of all processes.
    """

    step: int
    batch: int
    what: str
    first_not_finite: str | None
    scalars: dict[str, Any]
    examples: list[int]


class Incidents:
    """Remembers what went wrong in the last steps."""

    def __init__(self, file: Path | None, *, say: Callable[[str], None]) -> None:
        """Remembers nothing yet.

        Args:
            file: where it is written when it ends the run; None: another process does that.
            say: tells a person.
        """
        self._file, self._say = file, say
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
        """Remembers a step, and says so if the one before was in order.

        Args:
            step: steps done with it.
            scalars: of its report.
            number: of the batch in the run.
            examples: the `example_id` of the whole batch.
            health: how the run is doing after it.
            not_finite: the first quantity that is not; None for a spike.
        """
        spike = _spike(scalars["loss/total"], health.level)
        what = f"{not_finite} is not finite; nothing was changed" if not_finite else spike
        shown = {tag: _shown(value) for tag, value in scalars.items()}
        self._last.append(Incident(step, number, what, not_finite, shown, examples))
        if health.anomalous == 1:
            self._say(f"step {step}  {what}")

    def cut(self, step: int) -> None:
        """Forgets later steps, which will be done again on other data."""
        self._last = collections.deque((one for one in self._last if one.step <= step), _MOST)

    def write(self, trouble: Anomaly) -> str:
        """Writes down the steps that ended a run, and returns in words what ended it.

        A run that is started again in the same state of affairs ends without doing a step; what was
        written down stays.
        """
        last = range(trouble.step - trouble.steps + 1, trouble.step + 1)
        steps = [one._asdict() for one in self._last if one.step in last]
        first = next((one["first_not_finite"] for one in steps if one["first_not_finite"]), None)
        said = f"step {trouble.step}: {trouble.reason}" + (f"; first {first}" if first else "")
        if self._file is None:
            return f"{said}. {trouble.advice}"
        if steps:
            dump = {
                "step": trouble.step,
                "reason": trouble.reason,
                "first_not_finite": first,
                "advice": trouble.advice,
                "steps": steps,
            }
            try:
                write_text(self._file, json.dumps(dump, indent=1) + "\n")
            except StorageError as error:
                _log.error("%s", error)
        where = f" {self._file} has the steps and their examples." if self._file.exists() else ""
        return f"{said}.{where} {trouble.advice}"


def _spike(loss: float, level: Level) -> str:
    deviations = level.deviations(loss)
    return f"loss {loss:.4g} is a spike: {deviations:.1f} deviations above {level.mean:.4g}"


def _shown(value: float) -> float | str:
    """Returns a number as JSON has it; what is not finite in words."""
    return value if math.isfinite(value) else str(value)
