"""The step recorder records every step: the run's counters, its health, and its examples.

Everything that a step changes outside the program's state goes through here, so that a run can
resume from any step, or go back to one.

Axes: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.checkpoints.run_counters import RunCounters
from lingo.config.base.errors import NumericFailure
from lingo.contract import Experiment
from lingo.data.array_spec import marked_task
from lingo.learner import finite
from lingo.metrics.metric import Accumulator
from lingo.trainer.directory.audit import Audit
from lingo.trainer.guard.guard import Anomaly, Incidents, find_first_anomaly, record_anomaly


class StepRecorder:
    """Records steps; `counters` are the run's counters after the last recorded step."""

    def __init__(
        self,
        experiment: Experiment,
        start: RunCounters,
        *,
        incidents: Incidents,
        audit: Audit | None = None,
    ) -> None:
        """Starts from the counters of a run."""
        self._experiment, self._incidents, self._audit = experiment, incidents, audit
        self.continue_from(start)

    def add(self, batch: Mapping[str, np.ndarray], report: Mapping[str, Any]) -> dict[str, float]:
        """Records one step, and returns its scalars and the run's health, by TensorBoard tag.

        `batch` has the [B, ...] arrays of the examples that this process feeds; `report` is the
        result of `update`, as NumPy arrays.
        """
        p, learner = self._experiment.p, self._experiment.learner
        row = {tag: float(value) for tag, value in report["scalars"].items()}
        first, loss = int(report["first_non_finite"]), row["loss/total"]
        own, tags = learner.select(batch), {*row, *report["metric_states"]}
        not_finite = finite.name_first_non_finite(own, first, batch=batch, scalars=tags)
        before = self.counters
        health = before.health.add_step(
            loss, is_finite=not_finite is None, guard=p.guard, task=marked_task(batch) or ""
        )
        number, step = before.step + before.offset, before.step + 1
        after = before._replace(step=step, health=health)
        self.counters = record_anomaly(after, p.guard, max_steps=self._experiment.length.steps)
        if not_finite is None:
            self._metrics.add(report["metric_states"])
        if health.num_anomalous or self._audit is not None:
            examples = self._examples(number, batch["example_id"])
            known = {"number": number, "not_finite": not_finite, "examples": examples.tolist()}
            if health.num_anomalous:
                self._incidents.add(step, row, health=health, **known)
            if self._audit is not None:
                origins = self._experiment.train_input.origins(examples)
                self._audit.add(step, batch, loss=loss, origins=origins, **known)
        return row | health.counters()

    def take_metrics(self) -> dict[str, float]:
        """Returns the layers' metrics over finite steps since the last call, and clears them."""
        results, self._metrics = self._metrics.results(), Accumulator()
        return results

    def metadata(self) -> dict[str, Any]:
        """Returns the run's counters as a checkpoint records them."""
        counters = self.counters._replace(states=self._metrics.states)
        is_audited = {"audit": True} if self._audit is not None else {}
        return counters.metadata(self._experiment.train_input) | is_audited

    def anomaly(self) -> Anomaly | None:
        """Returns the anomaly that requires a rewind or a stop, or None."""
        experiment = self._experiment
        return find_first_anomaly(
            self.counters, experiment.p.guard, max_steps=experiment.length.steps
        )

    def failure(self, anomaly: Anomaly, *, but: str = "") -> NumericFailure:
        """Writes the incident file, and returns the error. `but` says why no rewind is possible."""
        reason = f"{anomaly.reason}, but {but}" if but else anomaly.reason
        return NumericFailure(self._incidents.write(anomaly._replace(reason=reason)))

    def write(self) -> None:
        """Writes the recorded rows of the audit log."""
        if self._audit is not None:
            self._audit.write()

    def sync(self) -> None:
        """Waits until the rows that `write` has written are on the disk."""
        if self._audit is not None:
            self._audit.sync()

    def cut(self, step: int) -> None:
        """Removes the records of steps after `step`."""
        self._incidents.cut(step)
        if self._audit is not None:
            self._audit.cut(step)

    def continue_from(self, counters: RunCounters) -> None:
        """Continues from other counters."""
        self.counters, self._metrics = counters, Accumulator(counters.states)

    def _examples(self, number: int, fed: np.ndarray) -> np.ndarray:
        """Returns the whole batch's example ids, [B], from the ids `fed` by this process."""
        data = self._experiment.train_input
        return fed if len(fed) == data.num_rows(number) else data.example_ids(number)
