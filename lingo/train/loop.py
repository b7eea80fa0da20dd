"""The training loop: batches in, steps done, and what is due in between.

for a few steps at a time:
    program.train(batches)              # at most up to the next step at which something is due
    report, save, evaluate              # where due
    leave if a signal asked to, or if evaluations have stopped getting better
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingo.data.prefetch import Item, Prefetch
from lingo.errors import LingoError
from lingo.lazy import tf
from lingo.metrics.metric import Accumulator
from lingo.train import best
from lingo.train.evaluate import evaluations, tagged
from lingo.train.experiment import Experiment
from lingo.train.generate import samples
from lingo.train.profile import Profile
from lingo.train.progress import Pace, Progress
from lingo.train.record import checkpoint
from lingo.train.record.run_directory import RunDirectory, State
from lingo.train.record.summaries import Summaries
from lingo.train.runtimes.runtime import Program, computing
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
        skipped: how many steps at the end changed nothing, because they were not finite.
        state: "done", "done (early)" if evaluations had stopped getting better, or "stopped".
    """

    step: int
    scalars: dict[str, float]
    evaluations: dict[str, dict[str, float]]
    signal: int | None = None
    skipped: int = 0
    state: State = "stopped"


class Position(NamedTuple):
    """Where a run stands.

    Attributes:
        step: steps done.
        skipped: how many of them, the last ones, were not finite and changed nothing.
    """

    step: int = 0
    skipped: int = 0

    def check_finite(self, limit: int) -> None:
        """Raises NumericFailure if the last `limit` steps changed nothing, or all there were."""
        if self.skipped and self.skipped >= min(limit, self.step):
            raise NumericFailure(
                f"step {self.step}: the loss or its gradient was not finite {self.skipped} times in"
                " a row. No such step changed a weight; lower optimizer.learning_rate or look at"
                " the data."
            )


class Loop:
    """One process at work on a run, from the step its program stands at."""

    def __init__(
        self,
        experiment: Experiment,
        program: Program,
        run: RunDirectory,
        *,
        start: Position,
        metadata: Mapping[str, Any],
        progress: Progress,
        pace: Pace,
        profile: Profile,
    ) -> None:
        """Does nothing yet.

        Args:
            experiment: what to train.
            program: its learner at work.
            run: where everything goes; locked by this process.
            start: where the program stands.
            metadata: what each checkpoint records.
            progress: where a person looks.
            pace: measures.
            profile: records some steps.
        """
        self._experiment, self._program, self._run = experiment, program, run
        self._at, self._saved, self._metadata = start, start.step, metadata
        self._progress, self._pace, self._profile = progress, pace, profile
        self._is_enough = False
        self._metrics = Accumulator()
        self._scalars: dict[str, float] = {}
        self._evaluations: dict[str, dict[str, float]] = {}

    def train(self, summaries: Summaries, signals: Signals) -> Outcome:
        """Trains to the last step, until a signal, or until evaluations get no better.

        What was done is saved, also after an error.

        Raises:
            NumericFailure: after too many steps in a row that were not finite.
            DataError: if the input fails.
            ProgramError: if the devices do.
            StorageError: if a checkpoint cannot be written.
            ParamError: if an evaluation does not give the metric it is compared by.
        """
        p = self._experiment.p
        steps = spans(
            *(self._at.step, p.max_steps),
            size=p.steps_per_loop,
            due=(p.checkpoint.every_steps, p.evaluate.every_steps),
            bounds=self._profile.bounds,
        )
        try:
            if not self._run.is_evaluated(self._at.step):  # a signal came before it was done
                self._evaluate(summaries, signals)
            with Prefetch(self._experiment.train_input, spans=steps) as items:
                while self._goes_on(signals) and (item := self._next(items)) is not None:
                    with self._profile.around(item.steps):
                        self._advance(item, summaries)
                    self._draw(summaries)
                    if self._is_saved():
                        self._save()
                    self._evaluate(summaries, signals)
                    self._sample(summaries, signals)
            self._at.check_finite(p.guard.max_skipped_steps)
        except LingoError:
            self._save()
            raise
        self._save()
        step, skipped = self._at
        return Outcome(step, self._scalars, self._evaluations, signals.received, skipped)

    def _goes_on(self, signals: Signals) -> bool:
        return signals.received is None and not self._is_enough

    def _next(self, items: Prefetch) -> Item | None:
        with self._pace.waiting():
            return next(items, None)

    # ---- steps

    def _advance(self, item: Item, summaries: Summaries) -> None:
        """Does the steps of an item, and reports those that are due."""
        with computing(f"step {item.steps.start + 1}"):
            report = self._program.train(item.batches)
        self._at = self._at._replace(step=item.steps.stop)
        self._pace.add(steps=len(item.steps), **counts(item.batches))
        pace: dict[str, float] | None = None
        for i, step in enumerate(item.steps):
            row = {tag: float(values[i]) for tag, values in report["scalars"].items()}
            self._metrics.add(tf.nest.map_structure(lambda v, i=i: v[i], report["states"]))
            self._guard(step + 1, row)
            if self._is_reported(step + 1):
                if pace is None:  # that of the first call would be the pace of compiling
                    pace = self._pace.read()
                    pace = pace if self._scalars else {}
                self._report(step + 1, row | self._metrics.results() | pace, summaries)

    def _guard(self, step: int, scalars: Mapping[str, float]) -> None:
        skipped = self._at.skipped + 1 if scalars["learner/skipped"] else 0
        self._at = self._at._replace(skipped=skipped)
        limit = self._experiment.p.guard.max_skipped_steps
        if skipped >= limit:
            Position(step, skipped).check_finite(limit)

    def _is_reported(self, step: int) -> bool:
        return step == 1 or step % self._experiment.p.summary.every_steps == 0 or self._is_due(step)

    def _report(self, step: int, scalars: dict[str, float], summaries: Summaries) -> None:
        self._scalars, self._metrics = scalars, Accumulator()
        summaries.write(step, scalars)
        self._progress.report(step, scalars)

    def _draw(self, summaries: Summaries) -> None:
        """Shows how the elements of each weight are distributed, where an evaluation is due."""
        if not (self._experiment.p.summary.histograms and self._is_due(self._at.step)):
            return
        with self._pace.paused():
            tensors = named(self._experiment.learner, self._program.state())
            weights = ((name, value) for name, value in tensors if name.startswith("weights/"))
            summaries.histograms(self._at.step, weights)

    # ---- evaluations

    def _is_due(self, step: int) -> bool:
        """Returns whether the evaluation inputs are run after a step."""
        p = self._experiment.p
        return step >= p.max_steps or (step > 0 and step % p.evaluate.every_steps == 0)

    def _evaluate(self, summaries: Summaries, signals: Signals) -> None:
        """Runs every evaluation input, if they are due; a signal leaves it for the next start."""
        experiment, found = self._experiment, {}
        if not (self._is_due(self._at.step) and experiment.eval_inputs) or signals.received:
            return
        with self._pace.paused():
            for name, metrics in evaluations(experiment, self._program):
                found[name] = tagged(metrics)
                self._progress.evaluated(name, found[name], step=self._at.step)
                if signals.received and len(found) < len(experiment.eval_inputs):
                    return
            best.check_metric(experiment, found)
            summaries.evaluated(self._at.step, found)
            self._is_enough = best.ranking(experiment, self._run.read_metrics()).is_enough
        self._evaluations |= found

    def _sample(self, summaries: Summaries, signals: Signals) -> None:
        """Shows how the model goes on with some texts, where an evaluation is due."""
        due = self._experiment.p.evaluate.prompts and self._is_due(self._at.step)
        if not due or signals.received:
            return
        with self._pace.paused():
            texts = samples(self._experiment, self._program)
            summaries.samples(self._at.step, texts)
            for prompt, text in texts.items():
                self._progress.message(f"step {self._at.step}  sample {prompt + text!r:.100}")

    # ---- checkpoints

    def _is_saved(self) -> bool:
        """Returns whether a checkpoint is written after a step: also before one may be the best."""
        p, step = self._experiment.p, self._at.step
        compared = p.evaluate.metric is not None and self._is_due(step)
        return step % p.checkpoint.every_steps == 0 or step >= p.max_steps or compared

    def _save(self) -> None:
        step, experiment = self._at.step, self._experiment
        if step == self._saved:
            return
        with self._pace.paused():
            checkpoint.save(
                self._run.checkpoints,
                step=step,
                tensors=named(experiment.learner, self._program.state()),
                metadata={**self._metadata, "skipped_steps": self._at.skipped},
                keep=experiment.p.checkpoint.keep,
                protected=best.protected(experiment, self._run),
            )
        self._saved = step
        self._run.set_status("running", step)


def spans(
    start: int, stop: int, *, size: int, due: Sequence[int], bounds: Sequence[int] = ()
) -> Iterator[range]:
    """Yields the steps done together.

    Args:
        start: steps done.
        stop: steps to do in all.
        size: the most done together.
        due: a span ends at every multiple of these,
        bounds: and at each of these.
    """
    while start < stop:
        ends = [(start // every + 1) * every for every in due] + [b for b in bounds if b > start]
        end = min(start + size, stop, *ends)
        yield range(start, end)
        start = end


def counts(batches: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns how many examples, and tokens where there are any, some batches hold; no padding."""
    found = {"examples": float(np.sum(batches["weights"]))}
    if "segments" in batches:
        found["tokens"] = float(np.count_nonzero(batches["segments"]))
    return found
