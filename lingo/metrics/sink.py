"""Where the reports of a run go besides its directory: a service, a database, a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from lingo.config.params import Configurable

ParameterValue: TypeAlias = bool | int | float | str


class Sink(Configurable, interface=True):
    """Receives the reports of a run: an item of `summary.sinks`.

    Only the process that writes the run's directory calls it, from one thread, and waits for it. An
    exception of a sink does not end the run: it is logged as a warning, and those that follow are
    not, until a call succeeds. A run that resumes from a checkpoint starts the sink again, and
    reports the steps after the checkpoint again; so does a rewind.
    """

    def start(self, directory: Path, parameters: Mapping[str, ParameterValue]) -> None:
        """Called before the first report.

        Args:
            directory: of the run.
            parameters: all parameters, by path as in config.txt: `optimizer.learning_rate`.
        """

    def write(self, step: int, values: Mapping[str, float], *, time: float) -> None:
        """Called with each report: what metrics.jsonl gets, by TensorBoard tag.

        `time` is in seconds since 1970. A step has up to two reports, the second that of an
        evaluation, `eval/<metric>`. Numbers may be NaN or infinite.
        """
        raise self._missing_method("write", "it takes (step, {tag: number}, time=seconds)")

    def end(self, state: str) -> None:
        """Called at the end: "done", "done (early)", "stopped" or "failed", as in STATUS.

        A process that is killed does not call it.
        """
