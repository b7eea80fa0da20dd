"""The training loop: it trains on batches, and reports, saves and evaluates when due.

for a few steps at a time:
    program.train(batches)              # at most up to the next step at which something is due
    rewind, or end with an error        # after too many anomalous steps in a row
    report, save, evaluate              # where due
    leave if a signal asked to, or if evaluations stopped improving
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.position import RunCounters
from lingo.config.errors import LingoError
from lingo.config.lazy import tf
from lingo.contract import Experiment
from lingo.data.prefetch import Item, Prefetch
from lingo.learner.state import TrainState, name_vectors
from lingo.processes.processes import ALONE, Processes
from lingo.processes.signals import Signals, Stop
from lingo.runtimes.runtime import Program, ProgramError, explain_program_errors
from lingo.storage import injection
from lingo.storage.status import State
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation.periodic import PeriodicEvaluation
from lingo.trainer.guard.guard import Anomaly
from lingo.trainer.guard.hang import Watchdog, WatchedProgram
from lingo.trainer.journal import Journal
from lingo.trainer.profile import Profile
from lingo.trainer.progress import Pace, Progress
from lingo.trainer.rewinder import Rewinder
from lingo.trainer.saver import Saver
from lingo.trainer.spans import spans
from lingo.trainer.summaries.summaries import Summaries
from lingo.trainer.work import Work


class Outcome(NamedTuple):
    """How a run ended.

    Attributes:
        step: the number of steps done; all are saved.
        scalars: the last report, by TensorBoard tag.
        evaluations: the last results of each evaluation input, tag -> value.
        signal: the number of the signal that ended the run early, or None.
        skipped: how many steps at the end changed nothing, because they were not finite.
        state: "done", "done (early)" if evaluations stopped improving, or "stopped".
    """

    step: int
    scalars: dict[str, float]
    evaluations: dict[str, dict[str, float]]
    signal: int | None = None
    skipped: int = 0
    state: State = "stopped"


class _Report(NamedTuple):
    """The report of a step: scalars by TensorBoard tag, and vectors by name."""

    scalars: dict[str, float]
    vectors: dict[str, np.ndarray]


class Loop:
    """Trains a run in one process, from the current step of its program."""

    def __init__(
        self,
        experiment: Experiment,
        program: Program,
        run: RunDirectory,
        *,
        journal: Journal,
        restore: Callable[[Checkpoint | None], TrainState],
        metadata: Mapping[str, Any],
        progress: Progress,
        pace: Pace,
        profile: Profile,
        watchdog: Watchdog,
        processes: Processes = ALONE,
    ) -> None:
        """Stores the collaborators; trains nothing yet.

        Args:
            experiment: what to train.
            program: the learner's program.
            run: the run directory, locked by the leader.
            journal: has the run's counters, and records every step.
            restore: reads the state of a checkpoint, or makes the initial one for None.
            metadata: what each checkpoint records.
            progress: shows reports and messages.
            pace: measures throughput.
            profile: profiles some steps.
            watchdog: detects hangs of the loop.
            processes: all run this loop; the leader shares what only it can know.
        """
        self._experiment, self._journal, self._processes = experiment, journal, processes
        self._program, self._watchdog = WatchedProgram(program, watchdog), watchdog
        self._pace, self._profile, self._progress = pace, profile, progress
        self._work = Work(experiment)
        self._scalars: dict[str, float] = {}
        self._saver = Saver(
            *(experiment, self._program, run),
            journal=journal,
            metadata=metadata,
            progress=progress,
            processes=processes,
        )
        self._rewinder = Rewinder(
            *(experiment, self._program, run),
            journal=journal,
            saver=self._saver,
            restore=restore,
            progress=progress,
            processes=processes,
        )
        self._evaluation = PeriodicEvaluation(
            *(experiment, self._program, run),
            state=self._saver.state,
            progress=progress,
            pace=pace,
            watchdog=watchdog,
            processes=processes,
        )

    def train(self, summaries: Summaries, signals: Signals) -> Outcome:
        """Trains to the last step, until a signal, or until evaluations stop improving.

        The state is saved at the end, also after an error.

        Raises:
            NumericFailure: after too many anomalous steps in a row: see `Guard`.
            DataError: if the input fails.
            ProgramError: if a device fails.
            StorageError: if a checkpoint cannot be written.
            ParamError: if an evaluation lacks the metric that `evaluate.metric` names.
            LostWorker: if another process ends, or does not answer.
        """
        with self._saver:
            try:
                with (
                    self._batches() as items,
                    self._watchdog,
                    contextlib.suppress(Stop),  # signals are obeyed only between steps
                ):
                    self._run_on(items, summaries, signals)
                self._saver.save()
                self._saver.wait()
            except ProgramError as error:
                cause = self._processes.blame(error)
                self._saver.rescue(cause)
                raise cause from error.__cause__
            except LingoError as error:
                self._saver.rescue(error)
                raise
        step, skipped = self.at.step, self.at.health.skipped
        return Outcome(step, self._scalars, self._evaluation.found, signals.received, skipped)

    def _batches(self) -> Prefetch:
        data, rows = self._experiment.train_input, self._program.example_slice
        return Prefetch(data, spans=self._spans(), offset=self.at.offset, rows=rows)

    @property
    def at(self) -> RunCounters:
        """The run's counters."""
        return self._journal.at

    def _run_on(self, items: Prefetch, summaries: Summaries, signals: Signals) -> None:
        """Trains on all items, and does what is due in between.

        Raises:
            Stop: if a signal comes, after the current step or save is complete.
        """
        if (trouble := self._journal.trouble()) is not None:  # the anomaly that ended the run
            self._answer(trouble, items, summaries)
        if not self._evaluation.is_done(self.at.step):  # a signal came before the evaluation
            self._evaluation.evaluate(self.at.step, summaries, signals)
        while not self._evaluation.is_enough and (item := self._next(items, signals)) is not None:
            with self._profile.around(item.steps):
                trouble = self._advance(item, summaries)
            if trouble is not None:
                self._answer(trouble, items, summaries)
                continue
            self._evaluation.draw(self.at.step, summaries, signals)
            self._saver.check()
            if self._saver.is_due(self.at.step):
                self._save()
            self._evaluation.evaluate(self.at.step, summaries, signals)
            self._evaluation.sample(self.at.step, summaries, signals)

    def _next(self, items: Prefetch, signals: Signals) -> Item | None:
        with self._pace.waiting(), signals.stop_at_once():
            injection.at("input", self.at.step)
            return next(items, None)

    def _save(self) -> None:
        with self._pace.paused(), self._watchdog.extend():
            self._saver.save()

    # ---- steps

    def _spans(self) -> Iterator[range]:
        p = self._experiment.p
        return spans(
            *(self.at.step, p.max_steps),
            size=p.steps_per_loop,
            due=(*self._saver.multiples, p.evaluate.every_steps),
            bounds=self._profile.bounds,
        )

    def _advance(self, item: Item, summaries: Summaries) -> Anomaly | None:
        """Trains on an item, reports the steps that are due, and returns the anomaly, if any."""
        first = item.steps.start + self.at.offset
        injection.at("step", item.steps.start)
        batches = injection.poison(range(first, first + len(item.steps)), item.batches)
        with explain_program_errors(f"step {item.steps.start + 1}"):
            report = tf.nest.map_structure(np.asarray, self._program.train(batches))
        self._pace.add(steps=len(item.steps), **self._work.of(first, item.batches))
        pace: dict[str, float] | None = None
        reports: dict[int, _Report] = {}
        for i in range(len(item.steps)):
            batch, said = tf.nest.map_structure(lambda v, i=i: v[i], (batches, report))
            row = self._journal.add(batch, said)
            if self._is_reported(self.at.step):
                if pace is None:  # the first call is left out: it may include compilation
                    pace = self._pace.read()
                    pace = pace if self._scalars else {}
                row |= pace
            if self._is_reported(self.at.step) or self.at.health.anomalous:
                scalars = row | self._journal.take_metrics()
                reports[self.at.step] = _Report(scalars, name_vectors(said["shown"]))
        self._journal.write()  # from here on, program and journal agree on the step
        for step, one in reports.items():
            self._report(step, one, summaries)
        return self._journal.trouble()

    def _answer(self, trouble: Anomaly, items: Prefetch, summaries: Summaries) -> None:
        """Rewinds to before an anomaly, or ends the run."""
        with self._pace.paused(), self._watchdog.extend():
            self._rewinder.answer(trouble, summaries)
            items.restart(self._spans(), offset=self.at.offset)

    def _is_reported(self, step: int) -> bool:
        return (
            step == 1
            or step % self._experiment.p.summary.every_steps == 0
            or self._evaluation.is_due(step)
        )

    def _report(self, step: int, report: _Report, summaries: Summaries) -> None:
        injection.at("report", step)
        self._scalars = report.scalars
        summaries.write_step(step, *report)
        self._progress.report(step, report.scalars)
