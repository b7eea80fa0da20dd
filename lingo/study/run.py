"""Runs a sweep: checks, starts, watches and compares its trials.

Every trial is an ordinary run in its own directory, and the sweep reads all it knows of a trial
from this directory. So the same call begins a sweep, resumes an interrupted sweep, and shows the
table of a finished sweep, even if another program started the runs.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from lingo.processes.parent import prepare_die_with_parent
from lingo.processes.signals import Signals
from lingo.storage.files import explain_write_errors, open_inside
from lingo.study import plan
from lingo.study.metric import Reading
from lingo.study.pruning import Pruner, read_pruning
from lingo.study.report import describe_progress, describe_result, results_json
from lingo.study.search import TriedPoint, propose_point
from lingo.study.trial import Result, State, Trial, sort_results
from lingo.trainer.directory.run_directory import RunDirectory

T = TypeVar("T")

Launch: TypeAlias = Callable[[Trial, int], subprocess.Popen[bytes]]
"""Starts a trial in a slot, 0 <= slot < num_workers, whose last trial has ended."""

GPUS = "CUDA_VISIBLE_DEVICES"
"""The environment variable that says which GPUs a process may use."""

_GPU = re.compile(r"\(UUID: ((?:GPU|MIG)-[\w/-]+)\)")
_POLL_SECONDS = 0.1
_STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)  # codes of a trial that was told to stop
_TAIL_BYTES = 4096


class SweepOutcome(NamedTuple):
    """How a sweep ended."""

    results: list[Result]  # of the trials that have ended, the best first
    signal: int | None  # number of the signal that ended the sweep early, or None


class _RunningTrial(NamedTuple):
    trial: Trial
    process: subprocess.Popen[bytes]
    start_seconds: float


def run_sweep(
    request: plan.SweepRequest, *, launch: Launch, num_workers: int, show: Callable[[str], None]
) -> SweepOutcome:
    """Runs the trials that are not done, `num_workers` at a time; `show` prints a line.

    Raises:
        ParamError: for every mistake in the request, before anything is created.
        ChangedSweep: if the directory holds another sweep, or a trial in it was begun with another
            configuration.
        DirectoryLocked: if another process runs a sweep in this directory.
        StorageError: if a file cannot be written.
    """
    sweep = _Sweep(request, launch=launch, num_workers=num_workers, show=show)
    with Signals() as signals, RunDirectory(request.logdir).lock():
        sweep.open()
        sweep.run(signals)
    return SweepOutcome(sweep.results, signals.received)


class _Sweep:
    """A sweep while it runs: starts trials, and collects their results."""

    def __init__(
        self,
        request: plan.SweepRequest,
        *,
        launch: Launch,
        num_workers: int,
        show: Callable[[str], None],
    ) -> None:
        self.results: list[Result] = []  # of the trials that have ended, the best first
        self._request, self._launch, self._show = request, launch, show
        self._points = plan.build_points(request)
        self._num_trials, self._num_workers = request.num_trials or len(self._points), num_workers
        self._done: set[int] = set()
        self._sizes: dict[int, int] = {}  # of the files of reports of running trials, in bytes
        self._pruner: Pruner | None = None
        if request.prune:
            self._pruner = Pruner(read_pruning(request.prune), request.metric.goal)
        self._running: dict[int, _RunningTrial] = {}  # by slot

    def open(self) -> None:
        """Checks the directory's content, and writes the request."""
        request, num_trials = self._request, self._num_trials
        plan.check_settings(request)
        if request.method == "optuna":
            points = plan.read_points(request.logdir, [axis.target for axis in request.axes])
            self._points = {number: p for number, p in points.items() if number < num_trials}
        self._done = plan.find_done(request, self._points)
        plan.write_json(request.logdir / plan.SWEEP, request.settings())
        best = {"min": "lowest", "max": "highest"}[request.metric.goal]
        at_a_time = f"{num_trials} trials, {self._num_workers} at a time"
        self._show(f"{at_a_time}; the {best} {request.metric.name} is best")
        self._show(f"tensorboard --logdir={shlex.quote(str(request.logdir))}")

    def run(self, signals: Signals) -> None:
        """Runs trials until none is left, or until a signal, which is passed on to the trials."""
        trials, is_stopping = self._remaining_trials(), False
        try:
            while True:
                free = [slot for slot in range(self._num_workers) if slot not in self._running]
                while signals.received is None and free and (trial := next(trials, None)):
                    self._start(trial, free.pop(0))
                if signals.received is not None and not is_stopping:
                    name = signal.Signals(signals.received).name
                    self._show_line(f"{name}: the trials save and stop")
                    self._send_signal(signals.received)
                    is_stopping = True
                if not self._running:
                    return
                self._prune()
                if not self._collect(signals.received):
                    time.sleep(_POLL_SECONDS)
        except BaseException:
            self._send_signal(signal.SIGINT)  # a second signal stops a trial at once
            raise

    def _remaining_trials(self) -> Iterator[Trial]:
        """Yields the trials that are not done, and adds the results of trials that are done."""
        for number in range(self._num_trials):
            if number not in self._points:
                self._propose(number)
            trial = self._request.trial(number, self._points[number])
            if self._pruner is not None and plan.read_pruned(trial) is not None:
                self._add_result(trial, "pruned")
            elif number in self._done:
                self._add_result(trial, "done")
            else:
                yield trial

    def _propose(self, number: int) -> None:
        """Lets Optuna propose a trial's point, and keeps it in the trial's directory."""
        scores = {result.trial.number: result.score for result in self.results}
        pruned = self._pruner.pruned_reports() if self._pruner is not None else {}
        tried = [
            TriedPoint(point, scores.get(n), pruned.get(n, {}))
            for n, point in sorted(self._points.items())
        ]
        point = propose_point(
            self._request.axes,
            tried,
            seed=self._request.seed + number,
            goal=self._request.metric.goal,
        )
        trial = self._request.trial(number, point)
        with explain_write_errors(trial.path):
            trial.path.mkdir(exist_ok=True)
        plan.write_json(trial.path / plan.TRIAL, {"number": number, "values": point})
        self._points[number] = point

    def _start(self, trial: Trial, slot: int) -> None:
        (trial.path / plan.PRUNED).unlink(missing_ok=True)  # of a sweep with `prune`
        process = self._launch(trial, slot)
        self._running[slot] = _RunningTrial(trial, process, time.monotonic())
        self._show_line(f"{trial.path.name}: started, {trial.path / plan.LOG}")

    def _prune(self) -> None:
        """Stops the running trials that their new reports prune."""
        for running in self._running.values() if self._pruner is not None else ():
            trial = running.trial
            is_new = self._has_reported(trial) and plan.read_pruned(trial) is None
            if is_new and self._is_pruned(trial):
                running.process.send_signal(signal.SIGTERM)

    def _has_reported(self, trial: Trial) -> bool:
        """Returns whether a trial has written reports since the last call."""
        file = trial.run.metrics.path
        size = file.stat().st_size if file.is_file() else 0
        before, self._sizes[trial.number] = self._sizes.get(trial.number, 0), size
        return size != before

    def _is_pruned(self, trial: Trial) -> bool:
        """Returns whether reports of a trial prune it; the first of them is kept in a file."""
        if self._pruner is None:
            return False
        verdict = self._pruner.judge(trial.number, self._readings(trial))
        if verdict is not None:
            plan.write_json(trial.path / plan.PRUNED, verdict._asdict())
        return verdict is not None

    def _readings(self, trial: Trial) -> list[Reading]:
        return self._request.metric.read_all(trial.run.metrics.read())

    def _tell_pruner(self, result: Result) -> None:
        """Tells the pruner how a trial has ended, after its reports up to a verdict."""
        if self._pruner is None or result.state == "stopped":
            return
        trial, readings = result.trial, self._readings(result.trial)
        if result.state == "pruned" and result.step is not None:
            readings = [reading for reading in readings if reading.step <= result.step]
        self._pruner.judge(trial.number, readings)
        self._pruner.end(trial.number, result.state, result.score)

    def _collect(self, received: int | None) -> bool:
        """Adds the results of the trials that have ended; returns whether any has ended."""
        codes = {slot: running.process.poll() for slot, running in self._running.items()}
        ended = {slot: code for slot, code in codes.items() if code is not None}
        for slot, code in ended.items():
            trial, _, start_seconds = self._running.pop(slot)
            state = _state(code, received)
            if state != "failed" or code in _STOPPED:
                state = "pruned" if self._is_pruned(trial) else state
            else:  # the next call tries it again
                (trial.path / plan.PRUNED).unlink(missing_ok=True)
            self._add_result(trial, state, code, time.monotonic() - start_seconds)
        return bool(ended)

    def _add_result(
        self, trial: Trial, state: State, code: int | None = None, seconds: float | None = None
    ) -> None:
        metric = self._request.metric
        pruned = plan.read_pruned(trial) if state == "pruned" else None
        reading = pruned or metric.read(trial.run.metrics.read())
        step, value = reading or (None, None)
        result = Result(trial, state, value, step, code, seconds)
        self._tell_pruner(result)
        self.results = sort_results([*self.results, result], metric)
        plan.write_json(self._request.logdir / plan.RESULTS, results_json(self.results, metric))
        text = describe_result(result, metric, last_line=_last_line(trial))
        progress = describe_progress(
            self.results, num_trials=self._num_trials, num_workers=self._num_workers
        )
        self._show_line(f"{trial.path.name}: {text}{progress}")

    def _show_line(self, text: str) -> None:
        self._show(f"[{len(self.results)}/{self._num_trials}] {text}")

    def _send_signal(self, number: int) -> None:
        for running in self._running.values():
            running.process.send_signal(number)


def _state(code: int, received: int | None) -> State:
    """Returns the state of a trial whose process ended with exit code `code`.

    `received` is the signal that the sweep has received, or None.
    """
    if code == 0:
        return "done"
    is_stopped = received is not None and code in (-received, 128 + received)
    return "stopped" if is_stopped else "failed"


def _last_line(trial: Trial) -> str:
    """Returns the last line of a trial's log that is not blank, or ""."""
    log = trial.path / plan.LOG
    if not log.is_file():
        return ""
    with open(log, "rb") as file:
        file.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
        lines = [line for line in file.read().decode(errors="replace").split("\n") if line.strip()]
    return lines[-1].strip() if lines else ""


# ---- trials as processes of this machine ---------------------------------------------------------


def launch_locally(
    trial: Trial, slot: int, *, program: Sequence[str], num_workers: int
) -> subprocess.Popen[bytes]:
    """Starts a trial as a child process, on its slot's share of the processors and GPUs.

    The child prints into its own log.txt. It has its own process group, so that a Ctrl+C at the
    terminal reaches it once, from the sweep. If the sweep dies, the child gets a signal to stop.
    Raises StorageError if the trial's directory or log cannot be written.
    """
    cores = divide(sorted(os.sched_getaffinity(0)), num_workers)[slot]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    if gpus := visible_gpus():
        environment[GPUS] = ",".join(divide_gpus(gpus, num_workers)[slot])
    die_with_parent = prepare_die_with_parent(signal.SIGTERM)

    def set_up_child() -> None:
        os.sched_setaffinity(0, cores)
        die_with_parent()

    with explain_write_errors(trial.path):
        trial.path.mkdir(exist_ok=True)
    with (
        explain_write_errors(trial.path / plan.LOG),
        open_inside(trial.path / plan.LOG, "ab") as log,
    ):
        return subprocess.Popen(
            [*program, *trial.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,
            preexec_fn=set_up_child,
        )


def divide(items: Sequence[T], num_workers: int) -> list[Sequence[T]]:
    """Returns each worker's items: an equal part, or all if there are fewer items than workers."""
    if num_workers > len(items):
        return [items] * num_workers
    cuts = [worker * len(items) // num_workers for worker in range(num_workers + 1)]
    return [items[start:end] for start, end in itertools.pairwise(cuts)]


def divide_gpus(gpus: Sequence[str], num_workers: int) -> list[Sequence[str]]:
    """Returns each worker's GPUs: an equal part, or one shared GPU if there are too few GPUs.

    So trials compete for a GPU's memory only if they must share the GPU.
    """
    if num_workers <= len(gpus):
        return divide(gpus, num_workers)
    return [[gpus[worker % len(gpus)]] for worker in range(num_workers)]


@functools.cache
def visible_gpus() -> tuple[str, ...]:
    """Returns the NVIDIA GPUs that this process may use, as names for CUDA_VISIBLE_DEVICES.

    The names are in CUDA_VISIBLE_DEVICES; if it is not set, `nvidia-smi` lists them. A GPU that is
    divided (MIG) is listed by its instances. Without NVIDIA GPUs the result is ().
    """
    if (given := os.environ.get(GPUS)) is not None:
        names = [name.strip() for name in given.split(",")]
        return tuple(itertools.takewhile(lambda name: name not in ("", "-1"), names))
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    ids = _GPU.findall(done.stdout) if done.returncode == 0 else []
    return tuple([i for i in ids if i.startswith("MIG-")] or ids)
