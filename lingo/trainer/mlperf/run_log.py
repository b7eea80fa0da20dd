"""The log of a run that MLPerf's rules require: mllog.txt in the directory of the run.

    built           cache_clear, init_start
    begin           init_stop, run_start: before data is opened
    start           the file begins: submission, data, hyper-parameters
    steps           block_start, epoch_start, epoch_stop, where a block or epoch begins or ends
    evaluation      eval_start; eval_accuracy, eval_stop, block_stop
    the last one    run_stop, "success" or "aborted"

A block ends with an evaluation. Every line has the number of steps done, so that a run that resumes
or rewinds can remove the lines of steps that it does again. The clock is the time of day, so the
result includes the time between stop and resume. `lingo_resume` marks where a run was resumed.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from lingo.config.params import ParamError
from lingo.contract import EvaluationReport, Experiment, ObservedRun, RunObserver
from lingo.storage.files import append, refuse_link, write_text
from lingo.storage.rows import State
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.mlperf.hyperparameters import hyperparameters
from lingo.trainer.mlperf.mllog import RULESET, LogLine, read_log
from lingo.trainer.mlperf.rules import RULES, Benchmark, FullForm, check_target

clock: Callable[[], float] = time.time

MLLOG = "mllog.txt"
STEP = "step_num"  # the number of steps done, in the metadata of every line
FORM = "form"  # "full" or "small: ...", in the metadata of `submission_...` and `run_stop`
RESUME = "lingo_resume"
EXPERIMENT = "experiment"

_NOT_SUBMITTED = "none: not submitted"
_CACHE = "a new process, without data of earlier ones; caches of the system are as they are"


class MlperfLog(RunObserver):
    """Writes the log of a run of an MLPerf benchmark; the run ends if its log fails."""

    benchmark: Benchmark  # name and round of the rules, such as "resnet@0.7.0"
    is_required: bool = True

    def setup(self) -> None:
        self.rules = RULES[self.p.benchmark]
        self._step, self._form = 0, ""
        self._num_written: int | None = None  # lines in the file; None: the file has not begun
        self._initialization = [
            self._line("cache_clear", True, note=_CACHE),
            self._line("init_start"),
        ]
        self._lines: list[LogLine] = []

    def check_experiment(self, experiment: Experiment) -> None:
        """Raises ParamError if an experiment's metric or target does not fit the benchmark."""
        check_target(self.rules, experiment)

    def on_begin(self, run: ObservedRun, step: int) -> None:
        """Starts the clock, or continues the log of a run that resumes after `step` steps.

        Raises ParamError if the run was begun without a log, or with another benchmark's log.
        """
        self._open(run, step)
        if step == 0:
            self._lines = [*self._initialization, self._line("init_stop"), self._line("run_start")]
            return
        self._lines = list(self._read())
        self._cut(step, is_evaluated=RunDirectory(run.directory).is_evaluated(step))
        # The run continues, so its earlier end does not count.
        self._lines = [line for line in self._lines if line.key != "run_stop"]
        self._lines.append(self._line(RESUME))

    def on_start(self, run: ObservedRun, step: int) -> None:
        """Begins the file with a description of the run, or continues the file."""
        self._form = self._describe_form()
        if step == 0:
            self._lines += self._describe_run(run.name)
        self._write_all()

    def on_steps_start(self, run: ObservedRun, step: int) -> None:
        """Begins a block and an epoch after `step` steps, unless they have begun."""
        self._step = step
        if self._open_number("block", "first_epoch_num") is None:
            per_block = self._epochs(self._experiment.evaluations.next_step(0))
            first = self._epoch_number() if self._open_epoch() else self._last_epoch() + 1
            self._add("block_start", first_epoch_num=first, epoch_count=max(1, round(per_block)))
        if not self._open_epoch():
            self._add("epoch_start", epoch_num=self._last_epoch() + 1)

    def on_steps_end(self, run: ObservedRun, step: int) -> None:
        """Ends the epochs whose last whole step is in the loop of steps that has just ended."""
        self._step = step
        num_ended = math.ceil(self._epochs(step + 1)) - 1
        while (number := self._open_epoch() or self._last_epoch() + 1) <= num_ended:
            if not self._open_epoch():
                self._add("epoch_start", epoch_num=number)
            self._add("epoch_stop", epoch_num=number)

    def on_evaluation_start(self, run: ObservedRun, step: int) -> None:
        """Begins an evaluation."""
        self._step = step
        self._add("eval_start", epoch_num=self._epoch_number())

    def on_evaluation_end(self, run: ObservedRun, report: EvaluationReport) -> None:
        """Ends an evaluation and its block; after the last evaluation, stops the clock."""
        name = self._experiment.p.evaluate.metric.partition("/")[0]
        number = self._epoch_number()
        accuracy = self.rules.log_value(report.results[name])
        self._add("eval_accuracy", accuracy, epoch_num=number)
        self._add("eval_stop", epoch_num=number)
        if (first := self._open_number("block", "first_epoch_num")) is not None:
            self._add("block_stop", first_epoch_num=first)
        if report.is_last:
            self._add("run_stop", status=self._status(), **{FORM: self._form})

    def on_rewind(self, run: ObservedRun, step: int) -> None:
        """Removes the lines about steps after `step`."""
        self._step = step
        self._cut(step, is_evaluated=True)
        self._write_all()

    def on_skip(self, run: ObservedRun, step: int, state: State) -> None:
        """Corrects the end of the log, if any, of a run that has nothing left to do.

        A run that was killed after its last evaluation lacks `run_stop`. If a target was lowered
        after the run had missed it, `run_stop` says "aborted" although the run now reaches the
        target. An existing `run_stop` keeps its time; a missing `run_stop` is written now, as in a
        run that resumes.
        """
        self._open(run, step)
        if not self._path.exists():
            return
        self._lines = list(self._read())
        status = self._status()
        stops = [line for line in self._lines if line.key == "run_stop"]
        if [line.metadata.get("status") for line in stops] == [status]:
            return
        forms = (line.metadata[FORM] for line in self._lines if FORM in line.metadata)
        stop = self._line("run_stop", status=status, **{FORM: next(forms, "")})
        kept = [line for line in self._lines if line.key != "run_stop"]
        ends = [stop._replace(seconds=stops[-1].seconds)] if stops else [self._line(RESUME), stop]
        self._lines = [*kept, *ends]
        self._write_all()

    # ---- lines

    def _open(self, run: ObservedRun, step: int) -> None:
        self._path, self._experiment, self._step = run.directory / MLLOG, run.experiment, step
        refuse_link(self._path)

    def _line(self, key: str, value: Any = None, **metadata: Any) -> LogLine:
        seconds = Decimal(int(clock() * 1000)) / 1000
        return LogLine(seconds, key, value, _caller() | metadata | {STEP: self._step})

    def _add(self, key: str, value: Any = None, **metadata: Any) -> None:
        self._lines.append(self._line(key, value, **metadata))
        if self._num_written is not None:
            append(self._path, self._render(self._lines[self._num_written :]).encode())
            self._num_written = len(self._lines)

    def _write_all(self) -> None:
        write_text(self._path, self._render(self._lines))
        self._num_written = len(self._lines)

    def _render(self, lines: Sequence[LogLine]) -> str:
        return "".join(f"{line.render(self.rules.ruleset)}\n" for line in lines)

    def _cut(self, step: int, *, is_evaluated: bool) -> None:
        kept = [line for line in self._lines if line.metadata.get(STEP, 0) <= step]
        starts = [
            index
            for index, line in enumerate(kept)
            if line.key == "eval_start" and line.metadata[STEP] == step
        ]
        self._lines = kept[: starts[0]] if starts and not is_evaluated else kept

    def _read(self) -> Sequence[LogLine]:
        """Returns the lines of the log that a run continues, without a line that a crash cut."""
        if not self._path.exists():
            raise ParamError(
                f"{self._path.parent} was begun without a log of MLPerf, so the log would lack its"
                " beginning: train in another directory, or without a log: --set=observers=[]"
            )
        log = read_log(self._path)
        if (before := log.benchmark()) != str(self.rules):
            raise ParamError(
                f"{self._path} is a log of {before}, not of {self.rules}: train in another"
                " directory"
            )
        return log.lines

    def _status(self) -> str:
        """Returns "success" if an evaluation so far has reached the target, else "aborted"."""
        target = self._experiment.p.evaluate.reach / self.rules.whole
        found = (line.value for line in self._lines if line.key == "eval_accuracy")
        is_reached = any(self.rules.accuracy(value) >= target for value in found)
        return "success" if is_reached else "aborted"

    # ---- epochs and blocks

    def _epochs(self, step: int) -> float:
        return self._experiment.train_input.epochs(step)

    def _open_number(self, kind: str, field: str) -> int | None:
        """Returns the number of the epoch or block that has begun but not ended, or None."""
        for line in reversed(self._lines):
            if line.key == f"{kind}_stop":
                return None
            if line.key == f"{kind}_start":
                return line.metadata[field]
        return None

    def _open_epoch(self) -> int | None:
        return self._open_number("epoch", "epoch_num")

    def _last_epoch(self) -> int:
        starts = (line for line in reversed(self._lines) if line.key == "epoch_start")
        return next((line.metadata["epoch_num"] for line in starts), 0)

    def _epoch_number(self) -> int:
        return self._open_epoch() or self._last_epoch()

    # ---- description of the run

    def _describe_form(self) -> str:
        """Returns "full" for the benchmark's own model and data, else "small: " and the sizes."""
        experiment = self._experiment
        own = FullForm(
            type(experiment.train_input).__name__,
            experiment.train_input.num_examples(),
            self._eval_samples(),
            sum(spec.size for spec in experiment.task.weights().values()),
        )
        if own == self.rules.full_form:
            return "full"
        size = (
            f"{own.train_samples:,} training samples of {own.input}, {own.eval_samples:,} of"
            f" evaluation, {own.num_weights:,} weights"
        )
        return f"small: {size}; not the model and data of the benchmark"

    def _eval_samples(self) -> int:
        name = self._experiment.p.evaluate.metric.partition("/")[0]
        return self._experiment.eval_inputs[name].num_examples()

    def _describe_run(self, name: str) -> list[LogLine]:
        rules, experiment = self.rules, self._experiment
        form = {FORM: self._form}
        about = {RULESET: rules.ruleset, EXPERIMENT: name, **form}
        division = "closed" if self._form == "full" else "open"
        entries = hyperparameters(experiment, rules.name, rules.ruleset)
        return [
            self._line("submission_benchmark", rules.name, **about),
            self._line("submission_org", _NOT_SUBMITTED),
            self._line("submission_division", division, **form),
            self._line("submission_status", "research"),
            self._line("submission_platform", ", ".join(experiment.runtime.device_names())),
            self._line("submission_poc_name", _NOT_SUBMITTED),
            self._line("submission_entry", _NOT_SUBMITTED),
            self._line("seed", experiment.p.seed),
            self._line("train_samples", experiment.train_input.num_examples()),
            self._line("eval_samples", self._eval_samples()),
            *(self._line(key, entry.value, **entry.metadata) for key, entry in entries.items()),
        ]


def find_log(experiment: Experiment) -> MlperfLog:
    """Returns the log among an experiment's observers; raises ParamError if it has no log."""
    for observer in experiment.observers:
        if isinstance(observer, MlperfLog):
            return observer
    raise ParamError(
        "the experiment names no benchmark of MLPerf: add MlperfLog.params(benchmark=...) to its"
        f" observers, with one of {', '.join(RULES)}"
    )


def _caller() -> dict[str, Any]:
    """Returns file and line number of the `on_...` method that adds a line, for its metadata."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name.startswith(("_", "<")):
        frame = frame.f_back
    if frame is None:
        return {}
    return {"file": Path(frame.f_code.co_filename).name, "lineno": frame.f_lineno}
