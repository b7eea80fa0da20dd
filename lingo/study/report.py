"""How a sweep shows what it does: a line an event."""

from __future__ import annotations

import datetime
import shlex
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from lingo.study.metric import Metric
from lingo.study.trial import LOG, Result, Trial, ranked

_QUIET_SECONDS = 60  # without a line before one says what is running

Clock = Callable[[], float]


class Report:
    """Shows lines such as

    [2/4] 001-learning_rate-3e-3: done, heldout/loss 3.21 at step 300; best 001 3.21; ETA 0:02:00
    """

    def __init__(
        self,
        metric: Metric,
        *,
        num_trials: int,
        num_workers: int,
        show: Callable[[str], None],
        clock: Clock = time.monotonic,
    ) -> None:
        """Shows nothing yet.

        Args:
            metric: what trials are compared by.
            num_trials: how many there are.
            num_workers: how many run at a time.
            show: prints a line.
            clock: seconds.
        """
        self._metric, self._num_trials, self._num_workers = metric, num_trials, num_workers
        self._show, self._clock = show, clock
        self._results: list[Result] = []
        self._began: dict[int, float] = {}
        self._seconds: list[float] = []
        self._last = clock()

    def opened(self, directory: Path) -> None:
        """Shows what is to be done, and the command that shows it in TensorBoard."""
        best = {"min": "lowest", "max": "highest"}[self._metric.goal]
        self._show(
            f"{self._num_trials} trials, {self._num_workers} at a time;"
            f" the {best} {self._metric.name} is best"
        )
        self._show(f"tensorboard --logdir={shlex.quote(str(directory))}")

    def started(self, trial: Trial) -> None:
        """Shows that a trial begins."""
        self._began[trial.number] = self._clock()
        self._line(f"{trial.path.name}: started, {trial.path / LOG}")

    def ended(self, result: Result, *, said: str = "") -> None:
        """Shows what came of a trial.

        Args:
            result: of the trial.
            said: the last line that its process printed.
        """
        self._results.append(result)
        if (began := self._began.pop(result.trial.number, None)) is not None:
            self._seconds.append(self._clock() - began)
        name = result.trial.path.name
        match result.state:
            case "done":
                before = " before" if result.exit_code is None else ""
                text = f"done{before}, {self._value(result)}"
            case "stopped":
                text = "stopped; the same command goes on with it"
            case "failed":
                text = f"failed with exit code {result.exit_code}: {said or 'it said nothing'}"
        self._line(f"{name}: {text}", more=True)

    def waited(self, running: Iterable[Trial]) -> None:
        """Shows what is running, if nothing was shown for a while."""
        if self._clock() - self._last >= _QUIET_SECONDS:
            states = [f"{trial.path.name} {_step(trial)}" for trial in running]
            self._line(f"running: {', '.join(states)}", more=True)

    def stopping(self, signal_name: str) -> None:
        """Shows that all trials are asked to save and stop."""
        self._line(f"{signal_name}: the trials save and stop")

    def _line(self, text: str, *, more: bool = False) -> None:
        parts = [text, self._best(), self._time_left()] if more else [text]
        self._show(f"[{len(self._results)}/{self._num_trials}] {'; '.join(filter(None, parts))}")
        self._last = self._clock()

    def _value(self, result: Result) -> str:
        if result.value is None:
            return f"no finite {self._metric.name}"
        return f"{self._metric.name} {result.value:.6g} at step {result.step}"

    def _best(self) -> str:
        best = next(iter(ranked(self._results, self._metric)), None)
        if best is None or best.score is None:
            return ""
        return f"best {best.trial.number:03d} {best.score:.6g}"

    def _time_left(self) -> str:
        left = self._num_trials - len(self._results)
        if not self._seconds or not left:
            return ""
        each = sum(self._seconds) / len(self._seconds)
        rounds = max(left / self._num_workers, 1)
        return f"ETA {datetime.timedelta(seconds=round(each * rounds))}"


def _step(trial: Trial) -> str:
    rows = trial.run.metrics.read()
    return f"at step {rows[-1]['step']}" if rows else "begins"
