"""The training loop: batches in, steps done, and what is due in between.

for a few steps at a time:
    program.train(batches)              # at most up to the next step at which something is due
    go back, or end with an error       # after too many steps in a row that were not in order
    report, save, evaluate              # where due
    leave if a signal asked to, or if evaluations have stopped getting better
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from lingo.data.prefetch import Item, Prefetch
from lingo.errors import LingoError
from lingo.lazy import tf
from lingo.train.checkpoints import store
from lingo.train.checkpoints.checkpoint import Checkpoint
from lingo.train.checkpoints.parts import Parts
from lingo.train.evaluation import best
from lingo.train.evaluation.evaluate import evaluations, tagged
from lingo.train.evaluation.generate import samples
from lingo.train.experiment import Experiment
from lingo.train.faults import injection, rewind
from lingo.train.faults.errors import NumericFailure
from lingo.train.faults.guard import Trouble
from lingo.train.faults.hang import Watchdog, Watched
from lingo.train.faults.signals import Signals, Stop
from lingo.train.inspection.profile import Profile
from lingo.train.progress import Pace, Progress, counts
from lingo.train.record.journal import Journal
from lingo.train.record.position import Position, position
from lingo.train.record.run_directory import RunDirectory
from lingo.train.record.status import State
from lingo.train.record.summaries import Summaries
from lingo.train.runtimes.processes.processes import ALONE, LEADER, LostWorker, Processes
from lingo.train.runtimes.runtime import Program, ProgramError, computing
from lingo.train.saver import Saver
from lingo.train.spans import spans
from lingo.train.state import TrainState, loaded, named, named_vectors

_log = logging.getLogger(__name__)


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


class _Report(NamedTuple):
    """What is said of a step: numbers by TensorBoard tag, and vectors by name."""

    scalars: dict[str, float]
    vectors: dict[str, np.ndarray]


class Loop:
    """One process at work on a run, from the step its program stands at."""

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
        """Does nothing yet.

        Args:
            experiment: what to train.
            program: its learner at work.
            run: where everything goes; locked by the leader.
            journal: where the program stands; is told of every step.
            restore: reads the state of a checkpoint, or makes the first one.
            metadata: what each checkpoint records.
            progress: where a person looks.
            pace: measures.
            profile: records some steps.
            watchdog: sees that the loop gets on.
            processes: each of which does the same; what only the leader can know, it shares.
        """
        self._experiment, self._run, self._processes = experiment, run, processes
        self._program, self._watchdog = Watched(program, watchdog), watchdog
        self._journal, self._metadata, self._restore = journal, metadata, restore
        self._saver = Saver(
            experiment,
            run,
            saved=journal.at.step,
            committed=self._committed,
            processes=processes,
        )
        self._progress, self._pace, self._profile = progress, pace, profile
        self._is_enough = False
        self._scalars: dict[str, float] = {}
        self._evaluations: dict[str, dict[str, float]] = {}

    def train(self, summaries: Summaries, signals: Signals) -> Outcome:
        """Trains to the last step, until a signal, or until evaluations get no better.

        What was done is saved, also after an error.

        Raises:
            NumericFailure: after too many steps in a row that were not in order: see `Guard`.
            DataError: if the input fails.
            ProgramError: if the devices do.
            StorageError: if a checkpoint cannot be written.
            ParamError: if an evaluation does not give the metric it is compared by.
            LostWorker: if another process ends, or does not answer.
        """
        with self._saver:
            try:
                with (
                    self._batches() as items,
                    self._watchdog,
                    contextlib.suppress(Stop),  # where a signal is obeyed no step is in hand
                ):
                    self._run_on(items, summaries, signals)
                self._save()
                self._saver.wait()
            except ProgramError as error:
                cause = self._processes.blame(error)
                self._rescue(cause)
                raise cause from error.__cause__
            except LingoError as error:
                self._rescue(error)
                raise
        step, skipped = self.at.step, self.at.health.skipped
        return Outcome(step, self._scalars, self._evaluations, signals.received, skipped)

    def _batches(self) -> Prefetch:
        data, rows = self._experiment.train_input, self._program.rows
        return Prefetch(data, spans=self._spans(), offset=self.at.offset, rows=rows)

    @property
    def at(self) -> Position:
        """Where the run stands."""
        return self._journal.at

    def _run_on(self, items: Prefetch, summaries: Summaries, signals: Signals) -> None:
        """Does the steps of all items, and what is due in between.

        Raises:
            Stop: if a signal comes, but not before a step or a save in hand is done.
        """
        if (trouble := self._journal.trouble()) is not None:  # that ended the run before
            self._answer(trouble, items, summaries)
        if not self._agreed(self._run.is_evaluated(self.at.step)):
            self._evaluate(summaries, signals)  # a signal came before it was done
        while not self._is_enough and (item := self._next(items, signals)) is not None:
            with self._profile.around(item.steps):
                trouble = self._advance(item, summaries)
            if trouble is not None:
                self._answer(trouble, items, summaries)
                continue
            self._draw(summaries, signals)
            self._saver.check()
            if self._saver.is_due(self.at.step):
                self._save()
            self._evaluate(summaries, signals)
            self._sample(summaries, signals)

    def _next(self, items: Prefetch, signals: Signals) -> Item | None:
        with self._pace.waiting(), signals.leaving():
            injection.at("input", self.at.step)
            return next(items, None)

    def _agreed(self, is_so: bool) -> bool:
        """Returns whether something is so that the leader knows: only it reads the reports."""
        with self._watchdog.paused():
            return self._processes.any(is_so)

    # ---- steps

    def _spans(self) -> Iterator[range]:
        p = self._experiment.p
        return spans(
            *(self.at.step, p.max_steps),
            size=p.steps_per_loop,
            due=(*self._saver.multiples, p.evaluate.every_steps),
            bounds=self._profile.bounds,
        )

    def _advance(self, item: Item, summaries: Summaries) -> Trouble | None:
        """Does the steps of an item, reports those that are due, and returns what is wrong."""
        first = item.steps.start + self.at.offset
        injection.at("step", item.steps.start)
        batches = injection.poisoned(range(first, first + len(item.steps)), item.batches)
        with computing(f"step {item.steps.start + 1}"):
            report = tf.nest.map_structure(np.asarray, self._program.train(batches))
        num_rows = self._experiment.train_input.num_rows(first)
        self._pace.add(steps=len(item.steps), **counts(item.batches, num_rows=num_rows))
        pace: dict[str, float] | None = None
        reports: dict[int, _Report] = {}
        for i in range(len(item.steps)):
            batch, said = tf.nest.map_structure(lambda v, i=i: v[i], (batches, report))
            row = self._journal.add(batch, said)
            if self._is_reported(self.at.step):
                if pace is None:  # that of the first call would be the pace of compiling
                    pace = self._pace.read()
                    pace = pace if self._scalars else {}
                row |= pace
            if self._is_reported(self.at.step) or self.at.health.troubled:
                scalars = row | self._journal.take_metrics()
                reports[self.at.step] = _Report(scalars, named_vectors(said["shown"]))
        self._journal.write()  # from here on, what fails finds program and journal at one step
        for step, one in reports.items():
            self._report(step, one, summaries)
        return self._journal.trouble()

    def _answer(self, trouble: Trouble, items: Prefetch, summaries: Summaries) -> None:
        """Goes back to before some trouble, or ends the run."""
        most, before = self._experiment.p.guard.max_rewinds, trouble.step - trouble.steps
        if trouble.answer == "stop":
            raise self._journal.failure(trouble)
        if self.at.rewinds >= most:
            raise self._journal.failure(trouble, but=f"guard.max_rewinds={most}")
        with self._pace.paused(), self._watchdog.paused():
            self._saver.wait()
            found, damaged = rewind.target(
                self._run.checkpoints,
                at_most=before,
                is_regular=self._saver.is_regular,
                processes=self._processes,
            )
            if found is None and (damaged or before >= min(self._saver.multiples)):
                but = "; ".join(["there is no sound checkpoint from before", *map(str, damaged)])
                raise self._journal.failure(trouble, but=but)
            store.set_aside_all(damaged, say=self._progress.message)
            self._go_back(found, trouble, summaries)
            items.restart(self._spans(), offset=self.at.offset)

    def _go_back(self, found: Checkpoint | None, trouble: Trouble, summaries: Summaries) -> None:
        """Goes back to a checkpoint, or to the beginning, and passes over the data since then.

        If the process is killed meanwhile, the next one runs into the same trouble: it finds the
        checkpoints from before it, and does the same.
        """
        to = position(found.step, found.metadata) if found else Position()
        state = loaded(self._restore(found))  # read before anything is given up for it
        offset, rewinds = self.at.offset + trouble.step - to.step, self.at.rewinds + 1
        self._run.set_status("running", to.step)  # or a start without checkpoints misses them
        if self._processes.is_leader:
            rewind.give_up(self._run.checkpoints, after=to.step)
        summaries.cut(to.step)
        self._journal.cut(to.step)
        with computing(f"loading step {to.step}"):
            self._program.load(state)
        self._journal.go_on(to._replace(offset=offset, rewinds=rewinds, unanswered=None))
        self._saver.saved = to.step
        self._progress.message(
            f"step {trouble.step}  {trouble.reason}: back to step {to.step}, on with batch"
            f" {to.step + offset} (rewind {rewinds})"
        )

    def _is_reported(self, step: int) -> bool:
        return step == 1 or step % self._experiment.p.summary.every_steps == 0 or self._is_due(step)

    def _report(self, step: int, report: _Report, summaries: Summaries) -> None:
        injection.at("report", step)
        self._scalars = report.scalars
        summaries.write(step, *report)
        self._progress.report(step, report.scalars)

    def _draw(self, summaries: Summaries, signals: Signals) -> None:
        """Shows how statistics went and how weights are distributed, where an evaluation is due.

        Of several processes the leader does, of weights that it has whole.
        """
        if not self._is_due(self.at.step):
            return
        with self._pace.paused(), self._watchdog.paused():
            if self._processes.is_leader:
                summaries.pictures(self.at.step)
            if not self._experiment.p.summary.histograms:
                return
            tensors = named(self._experiment.learner, self._state())
            weights = (
                (name, value)
                for name, value in (tensors if self._processes.is_leader else ())
                if name.startswith("weights/") and not isinstance(value, Parts)
            )
            summaries.histograms(self.at.step, signals.between(weights, together=False))

    # ---- evaluations

    def _is_due(self, step: int) -> bool:
        """Returns whether the evaluation inputs are run after a step."""
        p = self._experiment.p
        return step >= p.max_steps or (step > 0 and step % p.evaluate.every_steps == 0)

    def _evaluate(self, summaries: Summaries, signals: Signals) -> None:
        """Runs every evaluation input, if they are due; a signal leaves it for the next start."""
        experiment, found = self._experiment, {}
        if not (self._is_due(self.at.step) and experiment.eval_inputs):
            return
        with self._pace.paused():
            injection.at("evaluate", self.at.step)
            for name, metrics in evaluations(experiment, self._program, between=signals.between):
                found[name] = tagged(metrics)
                self._progress.evaluated(name, found[name], step=self.at.step)
            best.check_metric(experiment, found)
            summaries.evaluated(self.at.step, found)
            ranking = best.ranking(experiment, self._run.metrics.read())
            self._is_enough = self._agreed(ranking.is_enough)
        self._evaluations |= found

    def _sample(self, summaries: Summaries, signals: Signals) -> None:
        """Shows how the model goes on with some texts, where an evaluation is due."""
        if not (self._experiment.p.evaluate.prompts and self._is_due(self.at.step)):
            return
        signals.check()
        with self._pace.paused():
            texts = samples(self._experiment, self._program)
            summaries.samples(self.at.step, texts)
            for prompt, text in texts.items():
                self._progress.message(
                    f"step {self.at.step}  sample {prompt!r:.40} -> {text!r:.60}"
                )

    # ---- checkpoints

    def _save(self) -> None:
        """Hands the state to the writer, unless it did; raises what went wrong with the last."""
        step, journal = self.at.step, self._journal
        with self._pace.paused(), self._watchdog.paused():
            self._saver.wait()  # a second copy of the state is made when the first is gone
            if step == self._saver.saved:
                return
            trouble = journal.trouble()
            sound = trouble.step - trouble.steps if trouble else step - self.at.health.troubled
            metadata = {**self._metadata, **journal.metadata()}
            self._saver.save(step, self._state(), metadata, refuge=sound)

    def _state(self, *, alone: bool = False) -> TrainState:
        """Returns the state of the program, if that is where the journal says that it stands.

        Args:
            alone: the other processes are lost.

        Raises:
            ProgramError: if it is not, after an error on the way from one to the other; or if a
                device is lost.
        """
        with computing(f"reading the state after step {self.at.step}"):
            state = self._program.state(alone=alone)
        if state.step != self.at.step:
            raise ProgramError(f"step {state.step} was done, but not noted")
        return state

    def _committed(self, step: int) -> None:
        self._run.set_status("running", step)
        self._progress.message(f"step {step}  saved")

    def _rescue(self, error: LingoError) -> None:
        """Saves what was done before an error; what goes wrong now matters less than that.

        Several processes save together only after an error that all see: one of numbers. After
        any other the leader saves alone, or whoever is left without one.
        """
        alone = self._processes.count > 1 and not isinstance(error, NumericFailure)
        is_led = not (isinstance(error, LostWorker) and error.index == LEADER)
        if alone and is_led and not self._processes.is_leader:
            return
        try:
            self._journal.write()
            if alone:
                self._save_alone()
            else:
                self._save()
                self._saver.wait()
        except LingoError as late:
            _log.error("what was done until step %d is not saved: %s", self.at.step, late)

    def _save_alone(self) -> None:
        with contextlib.suppress(LingoError):  # what is being written needs the others, too
            self._saver.wait()
        step, metadata = self.at.step, {**self._metadata, **self._journal.metadata()}
        if self._saver.save_alone(step, self._state(alone=True), metadata):
            self._progress.message(f"step {step}  saved")
