"""The training loop: it trains on batches, and reports, saves and evaluates when due.

for a few steps at a time:
    program.train(batches)              # at most up to the next step at which something is due
    rewind, or end with an error        # after too many anomalous steps in a row
    go back to the last checkpoint      # if devices that hold parts of the state fail
    report, save, evaluate              # where due
    lower the learning rate             # if evaluations have stopped improving
    leave if a signal asked to, or if evaluations end the run
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.checkpoints.checkpoint import Checkpoint
from lingo.config.base.errors import LingoError
from lingo.config.lazy import tf
from lingo.contract import RunEvents, StepReport
from lingo.data.prefetch import Item, Prefetch
from lingo.learner.state import TrainState, name_vectors
from lingo.processes.signals import Stop
from lingo.runtimes.program import LostState, ProgramError, explain_program_errors
from lingo.storage import injection
from lingo.storage.rows import State
from lingo.trainer.followed import follow_evaluations
from lingo.trainer.guard.guard import Anomaly
from lingo.trainer.live_run import LiveRun
from lingo.trainer.periodic_evaluation import PeriodicEvaluation
from lingo.trainer.profile import Profile
from lingo.trainer.progress import metric_words
from lingo.trainer.rate_reducer import RateReducer
from lingo.trainer.saver import Rewinder, Saver, intervals
from lingo.trainer.throughput import Work, advise_loop


class Outcome(NamedTuple):
    """How a run ended."""

    step: int  # number of steps done, all of them saved
    scalars: dict[str, float]  # the last report, by TensorBoard tag
    evaluations: dict[str, dict[str, float]]  # last results: evaluation input -> {tag: value}
    signal: int | None = None  # the number of the signal that ended the run early
    num_skipped: int = 0  # last steps in a row that changed nothing because they were not finite
    state: State = "stopped"  # or "done", or "done (early)" if evaluations ended the run

    def __repr__(self) -> str:
        """Returns a line of the run's end, one of its last losses, and one per evaluation."""
        reports = {"training": self.scalars}
        for name, tagged in self.evaluations.items():
            reports[name] = {tag.removeprefix("eval/"): value for tag, value in tagged.items()}
        lines = ["  ".join([f"  {name}:", *metric_words(r)]) for name, r in reports.items() if r]
        signalled = f" by signal {self.signal}" if self.signal is not None else ""
        return "\n".join([f"{self.state}{signalled} at step {self.step}", *lines])

    def end_as(self, state: State) -> Outcome:
        """Returns the outcome in its final state; `signal` stays only if it stopped the run."""
        return self._replace(state=state, signal=self.signal if state == "stopped" else None)


class Loop:
    """Trains a run, from the current step of its program."""

    def __init__(
        self,
        run: LiveRun,
        *,
        restore: Callable[[Checkpoint | None], TrainState],
        metadata: Mapping[str, Any],
        profile: Profile,
    ) -> None:
        """Trains nothing yet. `restore` returns a checkpoint's state, or for None the first state.

        `metadata` are common to all checkpoints of the run.
        """
        self._run, self._profile = run, profile
        self._work = Work(run.experiment)
        self._scalars: dict[str, float] = {}
        self._is_advised = False  # whether the run has printed `advise_loop`
        self._saver = Saver(run, metadata)
        self._rewinder = Rewinder(run, self._saver, restore)
        self._rate_reducer = RateReducer(run, self._saver, restore)
        self._evaluation = PeriodicEvaluation(run, self._saver.state)

    def train(self) -> Outcome:
        """Trains to the last step, until a signal, or until evaluations end the run.

        The state is saved at the end, also after an error.

        Raises:
            NumericFailure: after too many anomalous steps in a row: see `Guard`.
            DataError: if the input fails.
            ProgramError: if a device fails.
            StorageError: if a checkpoint cannot be written.
            ParamError: if an evaluation does not report the metric `evaluate.metric`.
            LostWorker: if another process ends, or does not answer.
        """
        run = self._run
        with self._saver:
            try:
                with (
                    self._batches() as items,
                    run.watchdog,
                    contextlib.suppress(Stop),  # signals are obeyed only between steps
                ):
                    self._train(items)
                self._saver.save()
                self._saver.wait()
            except ProgramError as error:
                cause = run.processes.blame(error)
                self._saver.rescue(cause)
                raise cause from error.__cause__
            except LingoError as error:
                self._saver.rescue(error)
                raise
        counters = run.recorder.counters
        return Outcome(
            counters.step,
            self._scalars,
            self._evaluation.results,
            signal=run.signals.received,
            num_skipped=counters.health.num_skipped,
        )

    def save_start(self) -> Outcome:
        """Saves the state before the first step, and trains nothing.

        Raises StorageError if the checkpoint cannot be written.
        """
        self._saver.saved = -1  # else `save` does nothing: a run that trains never saves its start
        with self._saver:
            self._saver.save()
            self._saver.wait()
        return Outcome(self._step, {}, {})

    @property
    def _step(self) -> int:
        return self._run.recorder.counters.step

    def _batches(self) -> Prefetch:
        run, offset = self._run, self._run.recorder.counters.offset
        follow_evaluations(run)
        data, rows = run.experiment.train_input, run.program.example_slice
        return Prefetch(data, spans=self._spans(), offset=offset, rows=rows)

    def _train(self, items: Prefetch) -> None:
        """Trains on all items; saves and evaluates in between, where a signal raises Stop."""
        evaluation, saver, observers = self._evaluation, self._saver, self._run.observers
        if (anomaly := self._run.recorder.anomaly()) is not None:  # which ended the run last time
            self._rewind_or_stop(anomaly, items)
        if not evaluation.is_done(self._step):  # a signal came before the evaluation
            evaluation.evaluate(self._step)
            self._follow(items)
        self._lower_rate()
        while not evaluation.ends_run and (item := self._next(items)) is not None:
            observers.tell(RunEvents.on_steps_start, self._step)
            try:
                with self._profile.record(item.steps):
                    anomaly = self._advance(item)
            except LostState as error:
                self._restore_latest(error, items)
                self._lower_rate()
                continue
            if anomaly is not None:
                self._rewind_or_stop(anomaly, items)
                self._lower_rate()
                continue
            observers.tell(RunEvents.on_steps_end, self._step)
            evaluation.draw(self._step)
            saver.check()
            if saver.is_due(self._step):
                with self._pause():
                    saver.save()
            evaluation.evaluate(self._step)
            evaluation.sample(self._step)
            self._lower_rate()
            if evaluation.is_due(self._step):
                self._follow(items)

    def _lower_rate(self) -> None:
        if not self._evaluation.is_last(self._step):
            with self._pause():
                self._rate_reducer.lower()

    def _follow(self, items: Prefetch) -> None:
        """Makes later batches depend on an evaluation, if the training input follows any."""
        if follow_evaluations(self._run):
            items.restart(self._spans(), offset=self._run.recorder.counters.offset)

    def _next(self, items: Prefetch) -> Item | None:
        with self._run.throughput.count_wait(), self._run.signals.stop_at_once():
            injection.at("input", self._step)
            return next(items, None)

    @contextlib.contextmanager
    def _pause(self) -> Iterator[None]:
        with self._run.throughput.pause(), self._run.watchdog.extend():
            yield

    # ---- steps

    def _spans(self) -> Iterator[range]:
        experiment = self._run.experiment
        return spans(
            self._step,
            experiment.length.steps,
            size=experiment.p.steps_per_loop,
            due=intervals(experiment),
            next_ends=[experiment.evaluations.next_step],
            bounds=self._profile.bounds,
        )

    def _advance(self, item: Item) -> Anomaly | None:
        """Trains on an item, reports the steps that are due, and returns the anomaly, if any."""
        recorder, throughput = self._run.recorder, self._run.throughput
        first = item.steps.start + recorder.counters.offset
        injection.at("step", item.steps.start)
        batches = injection.poison(range(first, first + len(item.steps)), item.batches)
        with explain_program_errors(_name_steps(item.steps)):
            report = tf.nest.map_structure(np.asarray, self._run.program.train(batches))
        throughput.add(steps=len(item.steps), **self._work.count(first, item.batches))
        rates: dict[str, float] | None = None
        reports: list[StepReport] = []
        for i in range(len(item.steps)):
            batch, own = tf.nest.map_structure(lambda v, i=i: v[i], (batches, report))
            row = recorder.add(batch, own)
            if self._is_reported(self._step):
                if rates is None:  # no rates of the first call, which may include compilation
                    rates = throughput.read()
                    rates = rates | self._memory() if self._scalars else {}
                row |= rates
            if self._is_reported(self._step) or recorder.counters.health.num_anomalous:
                scalars = row | recorder.take_metrics()
                vectors = name_vectors(own["statistics"])
                reports.append(StepReport(self._step, scalars, vectors))
        self._run.directory.check_there()  # else reports would go to another directory in its place
        recorder.write()  # from here on, program and recorder agree on the step
        for one in reports:
            self._report(one)
        return recorder.anomaly()

    def _memory(self) -> dict[str, float]:
        """Returns {TensorBoard tag: a device's peak memory}; {} if devices do not report it."""
        peak = self._run.program.peak_memory_bytes()
        return {"perf/peak_memory_bytes": float(peak)} if peak else {}

    def _rewind_or_stop(self, anomaly: Anomaly, items: Prefetch) -> None:
        with self._pause():
            self._rewinder.rewind_or_stop(anomaly)
            follow_evaluations(self._run)
            items.restart(self._spans(), offset=self._run.recorder.counters.offset)

    def _restore_latest(self, error: LostState, items: Prefetch) -> None:
        with self._pause():
            self._rewinder.restore_latest(error)
            follow_evaluations(self._run)
            items.restart(self._spans(), offset=self._run.recorder.counters.offset)

    def _is_reported(self, step: int) -> bool:
        return (
            step == 1
            or step % self._run.experiment.p.summary.every_steps == 0
            or self._evaluation.is_due(step)
        )

    def _report(self, report: StepReport) -> None:
        injection.at("report", report.step)
        self._scalars = dict(report.scalars)
        self._run.observers.tell(RunEvents.on_report, report)
        if not self._is_advised:
            self._advise(report.step)

    def _advise(self, step: int) -> None:
        """Prints, once, how a long run of short steps may be faster."""
        experiment = self._run.experiment
        advice = advise_loop(
            self._scalars,
            steps_per_loop=experiment.p.steps_per_loop,
            steps_left=experiment.length.steps - step,
        )
        if advice:
            self._run.progress.message(advice)
            self._is_advised = True


def spans(
    start: int,
    stop: int,
    *,
    size: int,
    due: Sequence[int] = (),
    next_ends: Sequence[Callable[[int], int]] = (),
    bounds: Sequence[int] = (),
) -> Iterator[range]:
    """Yields the ranges of steps that are done together, by one call of the program.

    A span has at most `size` steps, and ends at every multiple of a number in `due`, at every step
    in `bounds`, and at the result of each function in `next_ends` for the span's first step.
    """
    while start < stop:
        ends = [(start // every + 1) * every for every in due] + [b for b in bounds if b > start]
        ends += [next_end(start) for next_end in next_ends]
        end = min(start + size, stop, *ends)
        yield range(start, end)
        start = end


def _name_steps(steps: range) -> str:
    """Returns "step 16" or "steps 16 to 25"; these numbers begin at 1, `steps.start` at 0."""
    first, last = steps.start + 1, steps.stop
    return f"step {last}" if first == last else f"steps {first} to {last}"
