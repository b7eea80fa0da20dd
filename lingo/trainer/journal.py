"""The journal records every step: the run's counters, its health, and its examples.

Everything that a step changes beside the program's state goes through here, so that a run can
resume from any step, or go back to one.

Axes: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.checkpoints.run_counters import RunCounters
from lingo.config.errors import NumericFailure
from lingo.contract import Experiment
from lingo.learner import finite
from lingo.metrics.metric import Accumulator
from lingo.trainer.directory.audit import Audit
from lingo.trainer.guard.guard import Anomaly, first_anomaly, record_anomaly
from lingo.trainer.guard.incidents import Incidents


class Journal:
    """Records steps.

    Attributes:
        at: the run's counters after the last recorded step.
    """

    def __init__(
        self,
        experiment: Experiment,
        start: RunCounters,
        *,
        incidents: Incidents,
        audit: Audit | None = None,
    ) -> None:
        """Starts from the counters of a run.

        Args:
            experiment: what is trained.
            start: the run's counters.
            incidents: receives every anomalous step.
            audit: receives one row per step; None for no audit log.
        """
        self._experiment, self._incidents, self._audit = experiment, incidents, audit
        self.go_on(start)

    def add(self, batch: Mapping[str, np.ndarray], report: Mapping[str, Any]) -> dict[str, float]:
        """Records one step.

        Args:
            batch: the [B, ...] arrays of the step's batch: the examples that this process feeds.
            report: the step's report, as `update` returns it, with NumPy arrays.

        Returns:
            The step's scalars and the run's health counters, by TensorBoard tag.
        """
        p, learner = self._experiment.p, self._experiment.learner
        row = {tag: float(value) for tag, value in report["scalars"].items()}
        first, loss = int(report["not_finite"]), row["loss/total"]
        not_finite = finite.name_first_non_finite(learner, first, batch=batch, scalars=row)
        health = self.at.health.add_step(loss, is_finite=not_finite is None, guard=p.guard)
        number = self.at.step + self.at.offset
        at = self.at._replace(step=self.at.step + 1, health=health)
        self.at = record_anomaly(at, p.guard, max_steps=p.max_steps)
        if not_finite is None:
            self._metrics.add(report["states"])
        if health.num_anomalous or self._audit is not None:
            examples = self._examples(number, batch["example_id"])
            known = {"number": number, "not_finite": not_finite, "examples": examples.tolist()}
            if health.num_anomalous:
                self._incidents.add(self.at.step, row, health=health, **known)
            if self._audit is not None:
                origins = self._experiment.train_input.origins(examples)
                self._audit.add(self.at.step, batch, loss=loss, origins=origins, **known)
        return row | health.counters()

    def take_metrics(self) -> dict[str, float]:
        """Returns the metrics of the finite steps since the last call, and clears them."""
        results, self._metrics = self._metrics.results(), Accumulator()
        return results

    def metadata(self) -> dict[str, Any]:
        """Returns the run's counters as a checkpoint records them."""
        at = self.at._replace(states=self._metrics.states)
        return at.metadata(self._experiment.train_input)

    def trouble(self) -> Anomaly | None:
        """Returns the anomaly that requires a rewind or a stop, or None."""
        p = self._experiment.p
        return first_anomaly(self.at, p.guard, max_steps=p.max_steps)

    def failure(self, trouble: Anomaly, *, but: str = "") -> NumericFailure:
        """Writes the incident file, and returns the error that ends the run.

        Args:
            trouble: the anomaly.
            but: why the run cannot rewind; "" if it should not.
        """
        reason = f"{trouble.reason}, but {but}" if but else trouble.reason
        return NumericFailure(self._incidents.write(trouble._replace(reason=reason)))

    def write(self) -> None:
        """Writes the recorded rows of the audit log.

        Raises:
            StorageError: if they cannot be written.
        """
        if self._audit is not None:
            self._audit.write()

    def cut(self, step: int) -> None:
        """Removes the records of steps after `step`.

        Raises:
            StorageError: if they cannot be removed.
        """
        self._incidents.cut(step)
        if self._audit is not None:
            self._audit.cut(step)

    def go_on(self, position: RunCounters) -> None:
        """Continues from other counters."""
        self.at, self._metrics = position, Accumulator(position.states)

    def _examples(self, number: int, fed: np.ndarray) -> np.ndarray:
        """Returns the example ids of the whole batch; this process may have fed only some.

        Args:
            number: the index of the batch in the run.
            fed: the ids of the examples that this process fed, 1-D.

        Returns:
            [B] ids.
        """
        data = self._experiment.train_input
        return fed if len(fed) == data.num_rows(number) else data.example_ids(number)
