"""The guard decides what to do about steps that are not finite, and about spikes of the loss.

The training step itself skips an update that is not finite. The guard counts skipped updates,
compares each loss with a running mean and variance of earlier losses, and decides whether the run
continues, rewinds to a checkpoint from before the anomaly, or stops. It decides step by step, from
numbers alone, so neither the number of steps per call nor a resume changes its decisions.

Incidents are the last anomalous steps. The first in a row is reported; all are written to a file
when they end a run.
"""

from __future__ import annotations

import collections
import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lingo.checkpoints.run_counters import Health, HealthSnapshot, RunCounters
from lingo.storage.files import StorageError, write_text

DUMP = "numeric_failure.json"

_MOST = 100  # how many incidents are kept

_log = logging.getLogger(__name__)


class Anomaly(NamedTuple):
    """An anomaly of a run that requires an action."""

    step: int  # number of steps done when the guard's limit was reached
    steps: int  # number of anomalous steps in a row, up to `step`
    action: Literal["rewind", "stop"]
    reason: str
    advice: str  # what the user can do if the run stops

    @property
    def sound_step(self) -> int:
        """The number of steps done before the first anomalous step."""
        return self.step - self.steps


def diagnose(health: Health, *, step: int, guard: Any, is_over: bool = False) -> Anomaly | None:
    """Returns the anomaly of a run, or None if the run may continue.

    After the last step (`is_over`), a run whose steps were all skipped has an anomaly, too.
    """
    limit = 1 if guard.on_non_finite == "stop" else guard.max_skipped_steps
    if health.num_skipped and health.num_skipped >= (min(limit, step) if is_over else limit):
        action = "rewind" if guard.on_non_finite == "rewind" and not is_over else "stop"
        reason = f"a loss, gradient or new value was not finite{_in_a_row(health.num_skipped)}"
        advice = (
            "No such step changed a weight. Lower optimizer.learning_rate or look at the data; or"
            " go on from here with guard.on_non_finite=skip and a larger guard.max_skipped_steps,"
            " or from an earlier checkpoint with guard.on_non_finite=rewind."
        )
    elif (
        guard.on_spike == "report"
        or health.num_skipped
        or health.num_spiked < guard.max_spiked_steps
    ):
        return None
    else:
        action = guard.on_spike
        reason = f"the loss was a spike{_in_a_row(health.num_spiked)}"
        advice = (
            "Lower optimizer.learning_rate or look at the data; or go on from here with"
            " guard.on_spike=report, or from an earlier checkpoint with guard.on_spike=rewind."
        )
    if action == "rewind":
        advice = "Lower optimizer.learning_rate or look at the data."
    return Anomaly(step, health.num_anomalous, action, reason, advice)


def _in_a_row(times: int) -> str:
    return f" {times} times in a row" if times > 1 else ""


def find_first_anomaly(counters: RunCounters, guard: Any, *, max_steps: int) -> Anomaly | None:
    """Returns the anomaly pending from an earlier step, else at the latest step; None if neither.

    The pending anomaly is diagnosed again: the guard may have changed since it was recorded.
    """
    now = HealthSnapshot(counters.step, counters.health)
    for step, health in filter(None, (counters.pending_anomaly, now)):
        if anomaly := diagnose(health, step=step, guard=guard, is_over=step >= max_steps):
            return anomaly
    return None


def record_anomaly(counters: RunCounters, guard: Any, *, max_steps: int) -> RunCounters:
    """Returns the counters with `pending_anomaly` set to the run's first anomaly, or None."""
    anomaly = find_first_anomaly(counters, guard, max_steps=max_steps)
    if anomaly is None:
        return counters._replace(pending_anomaly=None)
    if anomaly.step == counters.step:
        return counters._replace(pending_anomaly=HealthSnapshot(counters.step, counters.health))
    return counters


# ---- incidents -----------------------------------------------------------------------------------


class Incident(NamedTuple):
    """A step that was not finite, or whose loss was a spike."""

    step: int  # the number of steps done, with this one
    batch: int  # the index of its batch in the run
    what: str  # a description of what was wrong
    first_non_finite: str | None  # quantity, in the order of `learner/finite.py`; None for a spike
    scalars: dict[str, Any]  # the scalars of the step's report
    examples: list[int]  # the `example_id` of the whole batch, over all processes


class Incidents:
    """Keeps the last anomalous steps."""

    def __init__(self, file: Path | None, *, report: Callable[[str], None]) -> None:
        """Keeps nothing yet. If `file` is None, nothing is written: another process does it."""
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

        `number` is the batch's index in the run, and `health` the health after the step.
        `not_finite` is the first quantity that is not finite, or None for a spike.
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
        """Removes incidents of steps after `step`, which will be done again on other data."""
        self._last = collections.deque((one for one in self._last if one.step <= step), _MOST)

    def write(self, anomaly: Anomaly) -> str:
        """Writes the steps that ended a run to the file, and returns the error text.

        A run that is started again unchanged ends without doing a step. The old file is then kept.
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
    """Returns the number, or a string if it is not finite, which JSON numbers cannot be."""
    return value if math.isfinite(value) else str(value)
