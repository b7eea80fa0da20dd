"""Runs the trials of a study that have no result yet.

Each is a `lingo train` process with a share of the cores. Two small networks with a core each train
faster in all than one after the other on two cores.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lingo.config.base.errors import NumericFailure
from lingo.study import trial as sweep
from lingo.study.plan import LOG
from lingo.study.run import launch_locally
from lingo.trainer.directory.run_directory import RunDirectory
from tools.source_tree import current_commit
from tools.studies.trial import Result, Results, State, Trial, identity

PROGRAM = (sys.executable, "-P", "-m", "lingo.cli.main")
POLL_SECONDS = 0.2

SECONDS, RESULT = "seconds.txt", "result.json"
"""Files in a run's directory: the seconds of each process that trained it, a line each; its result,
which is there when it has been measured."""

Trials = Callable[[Results], Iterable[Trial]]
"""Yields the trials of a study, the most wanted first. It is called again with new results, which
may add trials, such as more seeds of the best learning rate."""

Measure = Callable[[Trial, Path], dict[str, float]]
"""Returns more metrics of the run in a directory, when its training is done."""


class FailedTrial(Exception):
    """A trial ended by an error, which tells nothing of the question."""


@dataclass
class _Running:
    trial: Trial
    process: subprocess.Popen[bytes]
    digest: tuple[str, ...]  # its `identity`
    start: float  # by time.monotonic()
    measurement: Future[Result] | None = None  # None: it trains

    def note_seconds(self, path: Path) -> None:
        """Adds the seconds of its process to the directory of its run."""
        with (path / SECONDS).open("a") as file:
            file.write(f"{time.monotonic() - self.start:.1f}\n")


def run(
    trials: Trials,
    results: Results,
    *,
    folder: Path,
    num_workers: int,
    seconds: float,
    measure: Measure | None = None,
) -> bool:
    """Runs trials, and adds their results; returns whether none is left.

    No trial starts after `seconds`. Directories of runs stay in `folder`, so that a trial that was
    interrupted is resumed by the next call. Measurements that have begun are finished in any case.
    Raises FailedTrial for a trial that failed, and what `measure` raises.
    """
    deadline = time.monotonic() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    running: dict[int, _Running] = {}
    measuring = ThreadPoolExecutor(num_workers)  # while one is measured, the others train
    try:
        while True:
            while time.monotonic() < deadline and len(running) < num_workers:
                trial = next(_next_trials(trials, results, folder, _trials_of(running)), None)
                if trial is None:
                    break
                slot = min(set(range(num_workers)) - set(running))
                running[slot] = _start(trial, folder, slot, num_workers)
            if not running:
                return next(_next_trials(trials, results, folder, ()), None) is None
            for slot, one in list(running.items()):
                if one.measurement is None and one.process.poll() is not None:
                    one.note_seconds(folder / one.trial.name)
                    result = _result(one, folder)
                    one.measurement = measuring.submit(_with_metrics, result, folder, measure)
                if one.measurement is not None and one.measurement.done():
                    del running[slot]
                    _add(one.measurement.result(), results, folder)
            time.sleep(POLL_SECONDS)
    finally:
        for one in running.values():
            if one.process.poll() is None:  # it saves, and is resumed by the next call
                one.process.terminate()
                one.process.wait()
                one.note_seconds(folder / one.trial.name)
        measuring.shutdown()
        for one in running.values():
            if one.measurement is not None and one.measurement.exception() is None:
                _add(one.measurement.result(), results, folder)


def _add(result: Result, results: Results, folder: Path) -> None:
    results.add(result)
    (folder / result.trial.name / RESULT).write_text(result.line())
    print(f"{result.trial.name}: {result.state}, {result.metrics}", flush=True)


def _with_metrics(result: Result, folder: Path, measure: Measure | None) -> Result:
    """Returns a result with what `measure` finds, if its training is done."""
    if measure is None or result.state != "done":
        return result
    more = measure(result.trial, folder / result.trial.name)
    return result._replace(metrics={**result.metrics, **more})


def _trials_of(running: Mapping[int, _Running]) -> list[Trial]:
    return [one.trial for one in running.values()]


def _next_trials(
    trials: Trials, results: Results, folder: Path, running: Collection[Trial]
) -> Iterator[Trial]:
    """Yields the trials that can start now, each once."""
    seen = {identity(trial) for trial in running}
    for trial in trials(results):
        if results.get(trial):
            continue
        while (start := trial.start) and not _is_trained(start, results, folder):
            trial = start  # its weights are needed first
        if (one := identity(trial)) not in seen:
            seen.add(one)
            yield trial


def _is_trained(trial: Trial, results: Results, folder: Path) -> bool:
    """Returns whether a trial has a result, and so has its run in a folder.

    Results are in the repository, runs are not. So a new checkout has results without runs.
    """
    return results.get(trial) is not None and (folder / trial.name / RESULT).exists()


def _start(trial: Trial, folder: Path, slot: int, num_workers: int) -> _Running:
    digest = identity(trial)  # it finds mistakes before anything starts
    arguments = tuple(trial.arguments(folder))
    print(f"{trial.name}: lingo {shlex.join(arguments)}", flush=True)
    process = launch_locally(
        sweep.Trial(0, {}, folder / trial.name, arguments),
        slot,
        program=PROGRAM,
        num_workers=num_workers,
    )
    return _Running(trial, process, digest, time.monotonic())


def _result(one: _Running, folder: Path) -> Result:
    """Returns the result of a trial that has ended."""
    states: dict[int, State] = {0: "done", NumericFailure.exit_code: "diverged"}
    path, code = folder / one.trial.name, one.process.returncode
    if code not in states:
        log = (path / LOG).read_text().strip().splitlines()
        raise FailedTrial(f"{path} ended with code {code}: {log[-1] if log else 'no output'}")
    rows = [
        row for row in RunDirectory(path).metrics.read() if any(k.startswith("eval/") for k in row)
    ]
    last = rows[-1] if rows else {"step": 0}
    return Result(
        trial=one.trial,
        digest=one.digest,
        state=states[code],
        step=last["step"],
        metrics={k.removeprefix("eval/"): v for k, v in last.items() if k.startswith("eval/")},
        seconds=round(sum(map(float, (path / SECONDS).read_text().split())), 1),
        commit=current_commit(),
    )
