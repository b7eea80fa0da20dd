"""The training loop: batches in, steps done, and what is due in between.

for a few steps at a time:
    program.train(batches)              # at most up to the next step at which something is due
    report, evaluate, save              # where due
    leave if a signal asked to
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingo.data.prefetch import Item, Prefetch
from lingo.errors import LingoError
from lingo.lazy import tf
from lingo.metrics.metric import Accumulator
from lingo.train.evaluate import evaluate
from lingo.train.experiment import Experiment
from lingo.train.progress import Pace, Progress
from lingo.train.record import checkpoint
from lingo.train.record.run_directory import RunDirectory
from lingo.train.record.summaries import Summaries
from lingo.train.runtimes.runtime import Program
from lingo.train.signals import Signals
from lingo.train.state import named


class NumericFailure(LingoError):
    """Losses or gradients were not finite for too many steps in a row."""

    exit_code: ClassVar[int] = 8


class Outcome(NamedTuple):
    """How a run ended.

    Attributes:
        step: steps done, all of them saved.
        scalars: the last report, by TensorBoard tag.
        evaluations: the last results by evaluation input, tag -> value.
        signal: number of the signal that ended it early, or None.
    """

    step: int
    scalars: dict[str, float]
    evaluations: dict[str, dict[str, float]]
    signal: int | None = None


class Loop:
    """One process at work on a run, from the step its program stands at."""

    def __init__(
        self,
        experiment: Experiment,
        program: Program,
        run: RunDirectory,
        *,
        step: int,
        metadata: Mapping[str, Any],
        progress: Progress,
    ) -> None:
        """Does nothing yet.

        Args:
            experiment: what to train.
            program: its learner at work, `step` steps done.
            run: where everything goes; locked by this process.
            step: steps done.
            metadata: what each checkpoint records.
            progress: where a person looks.
        """
        self._experiment, self._program, self._run = experiment, program, run
        self._step, self._saved, self._metadata = step, step, metadata
        self._progress, self._pace = progress, Pace()
        self._skipped = 0
        self._metrics = Accumulator()
        self._scalars: dict[str, float] = {}
        self._evaluations: dict[str, dict[str, float]] = {}

    def train(self, summaries: Summaries, signals: Signals) -> Outcome:
        """Trains to the last step, or until a signal; what was done is saved, also after an error.

        Raises:
            NumericFailure: after too many steps in a row that were not finite.
            DataError: if the input fails.
            StorageError: if a checkpoint cannot be written.
        """
        p = self._experiment.p
        due = (p.checkpoint.every_steps, p.evaluate.every_steps)
        steps = spans(self._step, p.max_steps, size=p.steps_per_loop, due=due)
        try:
            if not self._run.is_evaluated(self._step):  # a signal came before it was done
                self._evaluate(summaries, signals)
            with Prefetch(self._experiment.train_input, spans=steps) as items:
                while signals.received is None and (item := self._next(items)) is not None:
                    self._advance(item, summaries)
                    if self._step % p.checkpoint.every_steps == 0 or self._step == p.max_steps:
                        self._save()
                    self._evaluate(summaries, signals)
        except LingoError:
            self._save()
            raise
        self._save()
        return Outcome(self._step, self._scalars, self._evaluations, signals.received)

    def _next(self, items: Prefetch) -> Item | None:
        with self._pace.waiting():
            return next(items, None)

    def _advance(self, item: Item, summaries: Summaries) -> None:
        """Does the steps of an item, and reports those that are due."""
        report = self._program.train(item.batches)
        self._step = item.steps.stop
        self._pace.add(steps=len(item.steps), **counts(item.batches))
        pace: dict[str, float] | None = None
        for i, step in enumerate(item.steps, start=1):
            row = {tag: float(values[i - 1]) for tag, values in report["scalars"].items()}
            self._metrics.add(tf.nest.map_structure(lambda v, i=i: v[i - 1], report["states"]))
            self._guard(step, row)
            if self._is_reported(step + 1):
                if pace is None:  # that of the first call would be the pace of compiling
                    pace = self._pace.read()
                    pace = pace if self._scalars else {}
                self._report(step + 1, row | self._metrics.results() | pace, summaries)

    def _is_reported(self, step: int) -> bool:
        return step == 1 or step % self._experiment.p.summary.every_steps == 0 or self._is_due(step)

    def _is_due(self, step: int) -> bool:
        """Returns whether the evaluation inputs are run after a step."""
        p = self._experiment.p
        return step == p.max_steps or (step > 0 and step % p.evaluate.every_steps == 0)

    def _report(self, step: int, scalars: dict[str, float], summaries: Summaries) -> None:
        self._scalars, self._metrics = scalars, Accumulator()
        summaries.write(step, scalars)
        self._progress.report(step, scalars)

    def _guard(self, step: int, scalars: Mapping[str, float]) -> None:
        self._skipped = self._skipped + 1 if scalars["learner/skipped"] else 0
        limit = self._experiment.p.guard.max_skipped_steps
        if self._skipped >= limit:
            raise NumericFailure(
                f"step {step + 1}: the loss or its gradient was not finite {limit} times in a row"
                f" (loss {scalars['loss/total']}, gradient norm {scalars['learner/grad_norm']})."
                " No such step changed a weight; lower optimizer.learning_rate or look at the data."
            )

    def _evaluate(self, summaries: Summaries, signals: Signals) -> None:
        """Runs every evaluation input, if they are due; a signal leaves it for the next start."""
        experiment, found = self._experiment, {}
        if not (experiment.eval_inputs and self._is_due(self._step)):
            return
        with self._pace.paused():
            for name, input in experiment.eval_inputs.items():
                if signals.received is not None:
                    return
                weights = experiment.p.evaluate.weights
                results = evaluate(experiment.task, self._program, input, weights=weights)
                found[name] = {f"eval/{metric}": value for metric, value in results.items()}
                self._progress.evaluated(name, found[name], step=self._step)
            summaries.evaluated(self._step, found)
        self._evaluations |= found

    def _save(self) -> None:
        if self._step == self._saved:
            return
        with self._pace.paused():
            checkpoint.save(
                self._run.checkpoints,
                step=self._step,
                tensors=named(self._experiment.learner, self._program.state()),
                metadata=self._metadata,
                keep=self._experiment.p.checkpoint.keep,
            )
        self._saved = self._step
        self._run.set_status("running", self._step)


def spans(start: int, stop: int, *, size: int, due: Sequence[int]) -> Iterator[range]:
    """Yields the steps done together: at most `size`, none past a multiple of one in `due`."""
    while start < stop:
        end = min(start + size, stop, *((start // every + 1) * every for every in due))
        yield range(start, end)
        start = end


def counts(batches: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns how many examples, and tokens where there are any, some batches hold; no padding."""
    found = {"examples": float(np.sum(batches["weights"]))}
    if "segments" in batches:
        found["tokens"] = float(np.count_nonzero(batches["segments"]))
    return found
