"""The log of a run as MLPerf's rules want it, mllog.txt in the directory of the run.

    log = open_run_log(directory, experiment, is_requested=True)   # cache_clear, init_start
    log.start(step)                     # init_stop, run_start: before data is opened
    log.describe(name, devices)         # the file begins: submission, data, hyper-parameters
    for steps in spans:
        log.start_steps(step)           # block_start, epoch_start, where one begins
        log.end_steps(step)             # epoch_stop, where one ends
        log.start_evaluation(step)      # eval_start
        log.end_evaluation(step, ...)   # eval_accuracy, eval_stop, block_stop
    log.end_run(has_reached=...)        # run_stop, "success" or "aborted"
    log.end_skipped_run(step, ...)      # instead of all these: of a run with nothing left to do

A block ends with an evaluation. Every line has the number of steps done, by which a run that
resumes, or rewinds, removes what it does again; the time between is in the result, as the clock is
that of the day. `lingo_resume` marks where a run was resumed.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.storage.files import append, write_text
from lingo.trainer.directory.run_directory import MLLOG, RunDirectory
from lingo.trainer.mlperf.hyperparameters import hyperparameters
from lingo.trainer.mlperf.mllog import RULESET, LogLine, read_log
from lingo.trainer.mlperf.rules import FullForm, Rules, find_rules

STEP = "step_num"  # the steps done, in the metadata of every line
FORM = "form"  # likewise, and of `run_start` and `run_stop`
RESUME = "lingo_resume"
EXPERIMENT = "experiment"

_NOT_SUBMITTED = "none: not submitted"
_CACHE = "a new process, without data of earlier ones; caches of the system are as they are"


class RunLog:
    """Writes the log of a run. Once the file has begun, it has all lines when a method returns.

    Methods raise StorageError if it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        experiment: Experiment,
        rules: Rules,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Notes the start of the initialization, and touches no file yet."""
        self._path, self._experiment, self._rules = path, experiment, rules
        self._clock, self._step, self._form = clock, 0, ""
        self._lines: list[LogLine] = []
        self._num_written: int | None = None  # None: the file has not begun
        self._initialization = [
            self._line("cache_clear", True, note=_CACHE),
            self._line("init_start"),
        ]

    def start(self, step: int, *, is_evaluated: bool) -> None:
        """Starts the clock, or continues the log of a run that resumes after some steps.

        `is_evaluated` says whether the evaluation after these steps is done. Raises ParamError if
        the run was begun without a log, or with that of another benchmark.
        """
        self._step = step
        if step == 0:
            self._lines = [*self._initialization, self._line("init_stop"), self._line("run_start")]
            return
        self._lines = list(_read_own(self._path, self._rules))
        self._cut(step, is_evaluated=is_evaluated)
        self._lines = [line for line in self._lines if line.key != "run_stop"]  # more is asked for
        self._lines.append(self._line(RESUME))

    def describe(self, name: str, devices: Sequence[str]) -> None:
        """Begins the file with what is trained, or continues it; the data is open.

        Args:
            name: of the experiment.
            devices: names of the devices that the run has.
        """
        self._form = self._describe_form()
        if self._step == 0:
            self._lines += self._describe_run(name, devices)
        self._write_all()

    def start_steps(self, step: int) -> None:
        """Begins a block and an epoch after some steps, where none has begun."""
        self._step = step
        if self._open_number("block", "first_epoch_num") is None:
            per_block = self._epochs(self._experiment.p.evaluate.every_steps)
            first = self._epoch_number() if self._open_epoch() else self._last_epoch() + 1
            self._add("block_start", first_epoch_num=first, epoch_count=max(1, round(per_block)))
        if not self._open_epoch():
            self._add("epoch_start", epoch_num=self._last_epoch() + 1)

    def end_steps(self, step: int) -> None:
        """Ends, at the end of a loop of steps, the epochs whose last whole step is in it."""
        self._step = step
        num_ended = math.ceil(self._epochs(step + 1)) - 1
        while (number := self._open_epoch() or self._last_epoch() + 1) <= num_ended:
            if not self._open_epoch():
                self._add("epoch_start", epoch_num=number)
            self._add("epoch_stop", epoch_num=number)

    def start_evaluation(self, step: int) -> None:
        """Begins an evaluation."""
        self._step = step
        self._add("eval_start", epoch_num=self._epoch_number())

    def end_evaluation(self, results: Mapping[str, Mapping[str, float]]) -> None:
        """Ends an evaluation, and with it a block; `results` are input name -> {tag: value}."""
        name, _, metric = self._experiment.p.evaluate.metric.partition("/")
        number = self._epoch_number()
        accuracy = results[name][f"eval/{metric}"] / self._rules.whole
        self._add("eval_accuracy", accuracy, epoch_num=number)
        self._add("eval_stop", epoch_num=number)
        if (first := self._open_number("block", "first_epoch_num")) is not None:
            self._add("block_stop", first_epoch_num=first)

    def end_run(self, *, has_reached: bool) -> None:
        """Stops the clock."""
        status = "success" if has_reached else "aborted"
        self._add("run_stop", status=status, **{FORM: self._form})

    def end_skipped_run(self, step: int, *, has_reached: bool) -> None:
        """Corrects the end of the log, if there is one, of a run that has nothing left to do.

        A run that was killed after its last evaluation lacks `run_stop`, and one that is good
        enough for a lower target than it had says "aborted". The time of `run_stop` stays; one that
        is missing is written now, as by a run that resumes.
        """
        if not self._path.exists():
            return
        self._step, status = step, "success" if has_reached else "aborted"
        self._lines = list(_read_own(self._path, self._rules))
        stops = [line for line in self._lines if line.key == "run_stop"]
        if [line.metadata.get("status") for line in stops] == [status]:
            return
        forms = (line.metadata[FORM] for line in self._lines if FORM in line.metadata)
        stop = self._line("run_stop", status=status, **{FORM: next(forms, "")})
        others = [line for line in self._lines if line.key != "run_stop"]
        ends = [stop._replace(seconds=stops[-1].seconds)] if stops else [self._line(RESUME), stop]
        self._lines = [*others, *ends]
        self._write_all()

    def cut(self, step: int) -> None:
        """Removes what was written after `step`, which a run that rewinds does again."""
        self._step = step
        self._cut(step, is_evaluated=True)
        self._write_all()

    # ---- lines

    def _line(self, key: str, value: Any = None, **metadata: Any) -> LogLine:
        seconds = Decimal(int(self._clock() * 1000)) / 1000
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
        return "".join(f"{line.render(self._rules.ruleset)}\n" for line in lines)

    def _cut(self, step: int, *, is_evaluated: bool) -> None:
        kept = [line for line in self._lines if line.metadata.get(STEP, 0) <= step]
        starts = [
            index
            for index, line in enumerate(kept)
            if line.key == "eval_start" and line.metadata[STEP] == step
        ]
        self._lines = kept[: starts[0]] if starts and not is_evaluated else kept

    # ---- epochs and blocks

    def _epochs(self, step: int) -> float:
        return self._experiment.train_input.epochs(step)

    def _open_number(self, kind: str, field: str) -> int | None:
        """Returns the number of the epoch or block that has begun and not ended, or None."""
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

    # ---- what is trained

    def _describe_form(self) -> str:
        """Returns whether the run has the benchmark's own model and data, as a sentence."""
        experiment = self._experiment
        own = FullForm(
            type(experiment.train_input).__name__,
            experiment.train_input.num_examples(),
            self._eval_samples(),
            sum(spec.size for spec in experiment.task.weights().values()),
        )
        if own == self._rules.full_form:
            return "full"
        size = (
            f"{own.train_samples:,} training samples of {own.input}, {own.eval_samples:,} of"
            f" evaluation, {own.num_weights:,} weights"
        )
        return f"small: {size}; not the model and data of the benchmark"

    def _eval_samples(self) -> int:
        name = self._experiment.p.evaluate.metric.partition("/")[0]
        return self._experiment.eval_inputs[name].num_examples()

    def _describe_run(self, name: str, devices: Sequence[str]) -> list[LogLine]:
        rules, experiment = self._rules, self._experiment
        form = {FORM: self._form}
        about = {RULESET: rules.ruleset, EXPERIMENT: name, **form}
        division = "closed" if self._form == "full" else "open"
        entries = hyperparameters(experiment, rules.name, rules.ruleset)
        return [
            self._line("submission_benchmark", rules.name, **about),
            self._line("submission_org", _NOT_SUBMITTED),
            self._line("submission_division", division, **form),
            self._line("submission_status", "research"),
            self._line("submission_platform", ", ".join(devices)),
            self._line("submission_poc_name", _NOT_SUBMITTED),
            self._line("submission_entry", _NOT_SUBMITTED),
            self._line("seed", experiment.p.seed),
            self._line("train_samples", experiment.train_input.num_examples()),
            self._line("eval_samples", self._eval_samples()),
            *(self._line(key, entry.value, **entry.metadata) for key, entry in entries.items()),
        ]


def open_run_log(
    directory: RunDirectory, experiment: Experiment, *, is_requested: bool
) -> RunLog | None:
    """Returns the log of a run, or None if there is none, or if another process writes it.

    A run that has a log continues it, whether or not it is requested. Raises ParamError for an
    experiment that names no benchmark, or whose evaluations are not what its rules want.
    """
    path = directory.path / MLLOG
    if not (is_requested or (directory.enabled and path.exists())):
        return None
    rules = find_rules(experiment)
    return RunLog(path, experiment, rules) if directory.enabled else None


def _read_own(path: Path, rules: Rules) -> Sequence[LogLine]:
    """Returns the lines of the log that a run continues, without one that a crash cut short."""
    if not path.exists():
        raise ParamError(
            f"{path.parent} was begun without --mlperf, so that its log would lack the beginning:"
            " train in another directory"
        )
    log = read_log(path)
    if (before := log.benchmark()) != str(rules):
        raise ParamError(f"{path} is a log of {before}, not of {rules}: train in another directory")
    return log.lines


def _caller() -> dict[str, Any]:
    """Returns the place in the code, outside this file, that makes a line."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if frame is None:
        return {}
    return {"file": Path(frame.f_code.co_filename).name, "lineno": frame.f_lineno}
