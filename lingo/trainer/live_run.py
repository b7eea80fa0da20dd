"""A run between its start and its end."""

from __future__ import annotations

import dataclasses

from lingo.processes.signals import Signals
from lingo.runtimes.program import Program
from lingo.trainer.guard.hang import Watchdog
from lingo.trainer.request import Run
from lingo.trainer.step_recorder import StepRecorder
from lingo.trainer.summaries.summaries import Summaries
from lingo.trainer.throughput import Throughput


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveRun(Run):
    """A run while it trains: the objects that loop, saver and evaluation share."""

    program: Program  # holds weights, slots and statistics
    recorder: StepRecorder  # holds the run's counters, and records every step
    summaries: Summaries  # writes reports
    signals: Signals  # end the run between two steps
    throughput: Throughput  # is paused while the run does not train
    watchdog: Watchdog  # ends the run if nothing happens for too long
