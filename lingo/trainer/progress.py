"""Progress of a run, as one live line on a terminal or plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lingo.config.printable import escape_controls
from lingo.config.serial import Origin
from lingo.contract import Experiment, ObservedRun, RunEvents, StepReport
from lingo.data.epochs import RunLength
from lingo.layers.context import Call, enter_call
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.learner.step import find_frozen
from lingo.trainer.directory.environment import count_devices
from lingo.trainer.notebook import open_view

Clock = Callable[[], float]

_SHOWN = ("", "loss")  # first parts of metrics' names that are shown; the rest: TensorBoard
_WORK_SECONDS = 10.0  # from one plain line about long work to the next
_LIVE_SECONDS = 1.0  # from one update of the live line to the next
_KEPT_SECONDS = (10.0, 600.0)  # between reports that stay on a terminal: (at first, at most)


class _Console(Console):
    """A console that turns quiet when its reader has ended (`lingo train ... | head`)."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Stdout:
    """Standard output that drops text on a failed write, so a full disk does not end training."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._drop_on_error():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._drop_on_error():
            self._stream.flush()

    @property
    def _stream(self) -> TextIO:
        return getattr(sys.stdout, "rich_proxied_file", sys.stdout)  # rich replaces sys.stdout

    @contextlib.contextmanager
    def _drop_on_error(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError:
            self._drop()

    def _drop(self) -> None:
        """Flushes the buffer to /dev/null; otherwise every later flush would retry it."""
        with contextlib.suppress(OSError):  # io.UnsupportedOperation: the stream is not a file
            number = self._stream.fileno()
            kept, nowhere = os.dup(number), os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            self._stream.flush()
            os.dup2(kept, number)
            for descriptor in (kept, nowhere):
                os.close(descriptor)


class Progress(RunEvents):
    """Shows a run's progress. On a terminal, a live line shows the latest report."""

    def __init__(
        self,
        length: RunLength | None = None,
        *,
        enabled: bool = True,
        console: Console | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Shows nothing yet; if not `enabled`, never: another process shows the progress."""
        self._length, self._enabled, self._clock = length, enabled, clock
        self._console = console or _Console(file=cast(TextIO, _Stdout()), highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)
        self._kept_at, self._kept_pause = self._clock(), _KEPT_SECONDS[0]
        self._view = open_view() if enabled and console is None else None

    def __enter__(self) -> Progress:
        if self._enabled and self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        if self._view is not None:
            self._view.update(now=True)

    def show_directory(self, directory: Path) -> None:
        """Shows the command that opens the run in TensorBoard."""
        self.message(f"tensorboard --logdir={shlex.quote(str(directory))}")

    def end(self, text: str) -> None:
        """Shows the last permanent line, below the latest report."""
        self._live.stop()
        self.message(text)

    def message(self, text: str) -> None:
        """Shows a permanent line."""
        if self._view is not None:
            self._view.add_message(escape_controls(text))
        elif self._enabled:
            self._console.print(Text(escape_controls(text)), soft_wrap=True)

    def on_report(self, run: ObservedRun, report: StepReport) -> None:
        """Shows the report of a step.

        On a terminal some reports stay, at growing intervals, so that a user can look back.
        """
        if self._length is None:
            return
        line = report_line(report.step, self._length, report.scalars)
        if self._view is not None:
            loss = report.scalars.get("loss/total")
            self._view.add_report(report.step, loss, line, max_steps=self._length.steps)
            return
        if self._console.is_terminal and self._clock() - self._kept_at >= self._kept_pause:
            self._kept_at = self._clock()
            self._kept_pause = min(2 * self._kept_pause, _KEPT_SECONDS[1])
            self.message(line)
        self._show(line)

    def show_evaluation(self, name: str, results: Mapping[str, float], *, step: int) -> None:
        """Shows the results of an evaluation, by metric, in a permanent line."""
        self.message("  ".join([f"step {step}", f"eval {name}", *metric_words(results)]))

    @contextlib.contextmanager
    def work(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Yields a function to be called, during long work, with the amount done and the total."""
        start = last = self._clock()

        def advance(done: int, total: int) -> None:
            nonlocal last
            if self._console.is_terminal or self._clock() - last >= _WORK_SECONDS:
                last = self._clock()
                self._show(f"{what}: {100 * done / max(total, 1):.0f}%")

        yield advance
        if (seconds := self._clock() - start) >= 1:
            self.message(f"{what}: done in {_duration(seconds)}")

    @contextlib.contextmanager
    def show_time(self, what: str) -> Iterator[None]:
        """Shows how long the body takes, for work that cannot report how much of it is done.

        A thread shows it: compiling is a single call, which takes minutes on a busy machine.
        """
        start, has_ended = self._clock(), threading.Event()
        is_terminal = self._console.is_terminal
        if is_terminal:
            self._show(what)

        def show() -> None:
            pause = _LIVE_SECONDS if is_terminal else _WORK_SECONDS
            while not has_ended.wait(pause):
                self._show(f"{what}: {_duration(self._clock() - start)}")
                if not is_terminal:
                    pause *= 2  # an hour needs only a few lines

        thread = threading.Thread(target=show, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            has_ended.set()
            thread.join()
        if (seconds := self._clock() - start) >= _WORK_SECONDS:
            self.message(f"{what}: done in {_duration(seconds)}")

    def _show(self, line: str) -> None:
        if self._view is not None:
            self._view.add_work(line)
        elif not self._console.is_terminal:
            self.message(line)
        elif self._enabled:
            self._live.update(Text(line), refresh=True)  # a long line wraps


def header(experiment: Experiment, data: Mapping[str, Any], origin: Origin) -> list[str]:
    """Returns lines that describe a run: experiment, weights, data, devices, precision.

    `data` is the fingerprint of the training data.
    """
    learner, input = experiment.learner, experiment.train_input
    total = frozen = 0
    for weight in learner.weights().values():
        size, states = math.prod(weight.shape), learner.optimizer.trainable_layers(weight)
        total += size
        frozen += size * states.count(False) // len(states)
    note = f", {frozen:,} of them frozen" if frozen else ""
    with enter_call(Call(weights={}, frozen_weights=find_frozen(learner))):
        norms = [x for x in learner.task.tree() if isinstance(x, BatchNorm) and x.is_fixed()]
    if norms:
        note += f"; {len(norms)} frozen BatchNorm compute with their moving statistics"
    dtype = experiment.task.p.dtype
    precision = "float32" if dtype == "float32" else f"{dtype}, weights float32"
    xla = ", XLA" if experiment.runtime.compiles else ""
    kind, source = type(input).__name__, data.get("source", "")
    shape = input.specs().get("tokens", ((input.num_rows(0),), ""))[0]
    batch = " x ".join(map(str, shape)) + (" tokens" if len(shape) > 1 else " examples")
    return [
        f"{origin.call}: {total:,} weights{note}",
        f"data: {kind}{f' of {source}' if source else ''}: {input.num_examples():,} examples an"
        f" epoch, {batch} a step",
        f"devices: {count_devices(experiment.runtime.device_names())},"
        f" {type(experiment.runtime).__name__}; {precision}{xla}",
    ]


def report_line(step: int, length: RunLength, scalars: Mapping[str, float]) -> str:
    """Returns one line: step, epoch, loss, rate, throughput, input wait, memory, time left.

    The epoch is shown if the run's length is given in epochs.
    """
    formats: dict[str, Callable[[float], str]] = {
        "loss/total": lambda v: f"loss {_number(v)}",
        "learner/learning_rate": lambda v: f"lr {v:.2e}",
        "perf/examples_per_sec": lambda v: f"{_short(v)} examples/s",
        "perf/tokens_per_sec": lambda v: f"{_short(v)} tokens/s",
        "perf/step_time_ms": lambda v: f"{v:.1f} ms/step" if v < 1e4 else f"{v / 1e3:.1f} s/step",
        "perf/input_wait_fraction": lambda v: f"input {100 * v:.0f}%",
        "perf/peak_memory_bytes": lambda v: f"memory {v / 2**30:.1f} GiB",
        "perf/steps_per_sec": lambda v: f"ETA {_duration((length.steps - step) / v)}",
    }
    words = (form(scalars[tag]) for tag, form in formats.items() if tag in scalars)
    position = [f"step {step}/{length.steps}"]
    if length.max_epochs is not None:
        position.append(f"epoch {length.input.epochs(step):.2f}/{length.max_epochs:g}")
    return "  ".join([*position, *words])


def metric_words(results: Mapping[str, float]) -> list[str]:
    """Returns words such as `accuracy 0.9123` for metrics.

    Metrics of layers, such as `moe/entropy`, are only in TensorBoard.
    """
    shown = {tag: value for tag, value in results.items() if tag.rpartition("/")[0] in _SHOWN}
    return [f"{tag} {_number(value)}" for tag, value in shown.items()]


def _number(value: float) -> str:
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3e}"


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.1f}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s"
