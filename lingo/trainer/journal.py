"""What is noted of every step: where the run stands after it, how it is doing, what it was done on.

All that a step leaves behind beside the state of the program goes through here, so that a run can
go on from any step, or back to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.checkpoints.position import RunCounters
from lingo.config.errors import NumericFailure
from lingo.contract import Experiment
from lingo.learner import finite
from lingo.metrics.metric import Accumulator
from lingo.trainer.directory.audit import Audit
from lingo.trainer.guard.guard import Anomaly, first_anomaly, record_anomaly
from lingo.trainer.guard.incidents import Incidents


class Journal:
    """Notes steps.

    Attributes:
        at: where the run stands.
    """

    def __init__(
        self,
        experiment: Experiment,
        start: RunCounters,
        *,
        incidents: Incidents,
        audit: Audit | None = None,
    ) -> None:
        """Goes on from a position.

        Args:
            experiment: what is trained.
            start: where the run stands.
            incidents: hears of every step that was not in order.
            audit: gets a row a step; None: nobody asked for it.
        """
        self._experiment, self._incidents, self._audit = experiment, incidents, audit
        self.go_on(start)

    def add(self, batch: Mapping[str, np.ndarray], report: Mapping[str, Any]) -> dict[str, float]:
        """Notes one step.

        Args:
            batch: [B, ...] arrays that it was done on: the rows of its batch that this process has.
            report: of the step, as `update` returns it, NumPy's.

        Returns:
            Its scalars and the run's counters, by TensorBoard tag.
        """
        p, learner = self._experiment.p, self._experiment.learner
        row = {tag: float(value) for tag, value in report["scalars"].items()}
        first, loss = int(report["not_finite"]), row["loss/total"]
        not_finite = finite.name_first_non_finite(learner, first, batch=batch, scalars=row)
        health = self.at.health.after(loss, is_finite=not_finite is None, guard=p.guard)
        number = self.at.step + self.at.offset
        at = self.at._replace(step=self.at.step + 1, health=health)
        self.at = record_anomaly(at, p.guard, max_steps=p.max_steps)
        if not_finite is None:
            self._metrics.add(report["states"])
        if health.anomalous or self._audit is not None:
            examples = self._examples(number, batch["example_id"])
            known = {"number": number, "not_finite": not_finite, "examples": examples.tolist()}
            if health.anomalous:
                self._incidents.add(self.at.step, row, health=health, **known)
            if self._audit is not None:
                origins = self._experiment.train_input.origins(examples)
                self._audit.add(self.at.step, batch, loss=loss, origins=origins, **known)
        return row | health.counters()

    def take_metrics(self) -> dict[str, float]:
        """Returns the metrics of the steps since the last call that changed something."""
        results, self._metrics = self._metrics.results(), Accumulator()
        return results

    def metadata(self) -> dict[str, Any]:
        """Returns what a checkpoint records of where the run stands."""
        at = self.at._replace(states=self._metrics.states)
        return at.metadata(self._experiment.train_input)

    def trouble(self) -> Anomaly | None:
        """Returns what is wrong with the run, if it may not go on as it does."""
        p = self._experiment.p
        return first_anomaly(self.at, p.guard, max_steps=p.max_steps)

    def failure(self, trouble: Anomaly, *, but: str = "") -> NumericFailure:
        """Writes down what went wrong, and returns the error that ends the run.

        Args:
            trouble: what is wrong.
            but: why the run cannot go back, if it should.
        """
        reason = f"{trouble.reason}, but {but}" if but else trouble.reason
        return NumericFailure(self._incidents.write(trouble._replace(reason=reason)))

    def write(self) -> None:
        """Writes what was noted.

        Raises:
            StorageError: if that cannot be done.
        """
        if self._audit is not None:
            self._audit.write()

    def cut(self, step: int) -> None:
        """Removes what was noted of later steps.

        Raises:
            StorageError: if that cannot be done.
        """
        self._incidents.cut(step)
        if self._audit is not None:
            self._audit.cut(step)

    def go_on(self, position: RunCounters) -> None:
        """Goes on from another position."""
        self.at, self._metrics = position, Accumulator(position.states)

    def _examples(self, number: int, fed: np.ndarray) -> np.ndarray:
        """Returns the examples of a whole batch, of which this process may have fed some."""
        data = self._experiment.train_input
        return fed if len(fed) == data.num_rows(number) else data.example_ids(number)
