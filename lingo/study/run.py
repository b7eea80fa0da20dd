"""A sweep: trials chosen, checked, started, watched and compared.

Every trial is an ordinary run in a directory of its own, and what that directory holds is all that
is known of it. So the same call begins a sweep, goes on with one that broke off, and shows the
table of one that is done, whoever made the runs.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lingo.processes.signals import Signals
from lingo.study import plan, study
from lingo.study.directory import SweepDirectory
from lingo.study.launch import Launch, Process
from lingo.study.plan import Request
from lingo.study.report import Report
from lingo.study.search import Listed, Point, Search
from lingo.study.trial import LOG, Result, State, Trial, ranked

_PAUSE_SECONDS = 0.1
_TAIL_BYTES = 4096


class Outcome(NamedTuple):
    """How a sweep ended.

    Attributes:
        results: of the trials that have ended, the best first.
        signal: number of the signal that ended it early, or None.
    """

    results: list[Result]
    signal: int | None


def run(
    request: Request, *, launch: Launch, num_workers: int, show: Callable[[str], None]
) -> Outcome:
    """Runs the trials that are not done.

    Args:
        request: what to sweep.
        launch: starts a trial.
        num_workers: how many run at a time.
        show: prints a line.

    Raises:
        ParamError: for every mistake in what is asked for; nothing was created then.
        ChangedSweep: if the directory was begun with another sweep, or a trial in it with another
            configuration.
        DirectoryLocked: if another process sweeps there.
        StorageError: if something cannot be written.
    """
    points = plan.checked(request)
    directory = SweepDirectory(request.logdir)
    with Signals() as signals, directory.locked():
        directory.check(request.asked(), fixed=request.fixed())
        search = _search(request, points, directory.study)
        plan.check_begun(request, (search.point(number) for number in range(search.num_known)))
        directory.begin(request.asked())
        report = Report(
            request.metric, num_trials=search.num_trials, num_workers=num_workers, show=show
        )
        report.opened(request.logdir)
        work = _Work(
            request,
            search,
            launch=launch,
            num_workers=num_workers,
            directory=directory,
            report=report,
        )
        work.do(signals)
    return Outcome(ranked(work.results, request.metric), signals.received)


def _search(request: Request, points: Sequence[Point], file: Path) -> Search:
    if request.method != "optuna":
        return Listed(points)
    return study.Study(
        file,
        request.axes,
        num_trials=request.num_trials,
        seed=request.seed,
        goal=request.metric.goal,
    )


class _Work:
    """The trials of a sweep at work.

    Attributes:
        results: of the trials that have ended.
    """

    def __init__(
        self,
        request: Request,
        search: Search,
        *,
        launch: Launch,
        num_workers: int,
        directory: SweepDirectory,
        report: Report,
    ) -> None:
        self.results: list[Result] = []
        self._request, self._search, self._launch = request, search, launch
        self._directory, self._report = directory, report
        self._free = list(range(num_workers))
        self._running: dict[int, tuple[Trial, Process]] = {}  # by slot

    def do(self, signals: Signals) -> None:
        """Runs trials until none is left, or until a signal, which is handed on to them."""
        left, told = self._left(), False
        try:
            while True:
                self._start(left, signals)
                if signals.received is not None and not told:
                    self._tell(signals.received)
                    told = True
                if not self._running:
                    return
                if not self._collect(signals):
                    self._report.waited(trial for trial, _ in self._running.values())
                    time.sleep(_PAUSE_SECONDS)
        except BaseException:
            for _, process in self._running.values():  # for those told before: at once
                process.send_signal(signal.SIGINT)
            raise

    def _left(self) -> Iterator[Trial]:
        """Yields the trials that are not done; those that are count as ended."""
        for number in range(self._search.num_trials):
            trial = self._request.trial(number, self._search.point(number))
            if plan.is_done(self._request, trial):
                self._end(trial, "done", None)
            else:
                yield trial

    def _start(self, left: Iterator[Trial], signals: Signals) -> None:
        """Starts trials in all free slots, as long as no signal came."""
        while signals.received is None and self._free and (trial := next(left, None)):
            slot = self._free.pop(0)
            self._running[slot] = (trial, self._launch(trial, slot))
            self._report.started(trial)

    def _tell(self, number: int) -> None:
        self._report.stopping(signal.Signals(number).name)
        for _, process in self._running.values():
            process.send_signal(number)

    def _collect(self, signals: Signals) -> bool:
        """Takes note of the trials that have ended, and returns whether there were any."""
        codes = {slot: process.poll() for slot, (_, process) in self._running.items()}
        ended = {slot: code for slot, code in codes.items() if code is not None}
        for slot, code in ended.items():
            trial, _ = self._running.pop(slot)
            self._free.append(slot)
            self._end(trial, _state(code, signals.received), code)
        return bool(ended)

    def _end(self, trial: Trial, state: State, code: int | None) -> None:
        found = self._request.metric.read(trial.run.metrics.read())
        value, step = (found.value, found.step) if found else (None, None)
        result = Result(trial, state, value, step, code)
        if state == "done":
            self._search.learn(trial.number, value)
        self.results.append(result)
        self._directory.record(ranked(self.results, self._request.metric), self._request.metric)
        self._report.ended(result, said=_last_line(trial) if state == "failed" else "")


def _state(code: int, received: int | None) -> State:
    """Returns the state of a trial whose process ended with a code."""
    if code == 0:
        return "done"
    stopped = received is not None and code in (-received, 128 + received)
    return "stopped" if stopped else "failed"


def _last_line(trial: Trial) -> str:
    """Returns the last line of a trial's log that says something, or ""."""
    log = trial.path / LOG
    if not log.is_file():
        return ""
    with open(log, "rb") as file:
        file.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
