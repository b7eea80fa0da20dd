"""The harness of benchmarks: rivals take turns, ratios are printed and compared with bounds.

A ratio of times measured minutes apart compares the machine's loads. Here rivals take turns, one
step each, for many rounds, and a ratio is taken within a round. A rival that needs its own settings
has its own process; one process runs at a time.

A benchmark has a small form, too, which `choose` makes: it shows within seconds that all of the
code still runs.

    report = Report()
    costs = measure({"lingo": lingo_steps, "by hand": plain_steps}, num=12).rounds
    report.ratio("lingo / by hand", costs["lingo"], costs["by hand"], at_most(1.02))
    report.exit_code()    # 1, and prints: missed: lingo / by hand is 1.05, wanted <= 1.02
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, TypeVar
from unittest import mock

K = TypeVar("K")
T = TypeVar("T")

# ---- forms ---------------------------------------------------------------------------------------

FORM = "LINGO_BENCH"
"""The environment variable that names the form of a benchmark."""
SMALL = "small"
"""Its value for the small form."""


def choose(full: T, *, small: T) -> T:
    """Returns `small` where the environment variable LINGO_BENCH is "small", and `full` elsewhere.

    Constants of a benchmark choose between its full form, whose ratios count, and its small form,
    which only shows that all of its code runs. A rival has a process of its own, which imports the
    benchmark again: all of these processes see the variable.
    """
    return small if os.environ.get(FORM) == SMALL else full


# ---- turns ---------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """The cost of one turn."""

    seconds: float  # of wall-clock time
    cpu_seconds: float  # of all processors, by this process


class Turns:
    """A rival's side: `with turns.turn(): step()` waits for the turn, and is measured."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._began = Cost(0.0, 0.0)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Measures its body."""
        self.begin()
        yield
        self.end()

    def begin(self) -> None:
        """Waits for the turn. The process ends here when none is left."""
        try:
            self._pipe.recv()
        except EOFError:
            raise SystemExit(0) from None
        self._began = Cost(time.perf_counter(), time.process_time())

    def end(self) -> None:
        """Ends the turn."""
        seconds = time.perf_counter() - self._began.seconds
        self._pipe.send(Cost(seconds, time.process_time() - self._began.cpu_seconds))


Rival = Callable[[Turns], None]
"""Takes turns for ever; a function of a module, or a partial of one."""


class Process:
    """A rival in a process of its own."""

    def __init__(self, rival: Rival, environment: Mapping[str, str] | None = None) -> None:
        """Starts it, with more environment variables than this process has."""
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_work, args=(rival, theirs), daemon=True)
        with mock.patch.dict(os.environ, environment or {}):
            self._process.start()  # it inherits them
        theirs.close()

    def turn(self) -> Cost:
        """Lets the rival take a turn; raises EOFError if it ended by an error, which it printed."""
        self._pipe.send(None)
        return self._pipe.recv()

    def peak_megabytes(self) -> float:
        """Returns the peak memory of the process."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(peak[1]) / 1024 if peak else 0.0

    def reset_peak(self) -> None:
        """Makes `peak_megabytes` forget what came before."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def close(self) -> None:
        """Ends the process."""
        self._pipe.close()
        self._process.join()


def _work(rival: Rival, pipe: Connection) -> None:
    rival(Turns(pipe))


class Measured(NamedTuple):
    """The costs of rivals, by name."""

    first: dict[str, Cost]  # of the first turn of each, in which it compiles
    rounds: dict[str, list[Cost]]  # of each as many turns as there were rounds


def measure(rivals: Mapping[str, Rival], *, num: int) -> Measured:
    """Lets rivals take turns, each in its process: one to compile, then `num` rounds."""
    with contextlib.ExitStack() as stack:
        processes = {name: Process(rival) for name, rival in rivals.items()}
        for process in processes.values():
            stack.callback(process.close)
        first = {name: process.turn() for name, process in processes.items()}
        return Measured(first, alternate({k: p.turn for k, p in processes.items()}, num=num))


def alternate(functions: Mapping[K, Callable[[], T]], *, num: int) -> dict[K, list[T]]:
    """Returns what functions return, each called once in each of `num` rounds."""
    results: dict[K, list[T]] = {name: [] for name in functions}
    for _ in range(num):
        for name, function in functions.items():
            results[name].append(function())
    return results


# ---- numbers -------------------------------------------------------------------------------------


class Spread(NamedTuple):
    """The range and the middle of some numbers."""

    least: float
    median: float
    most: float

    def __str__(self) -> str:
        return f"{self.least:8.3f} {self.median:8.3f} {self.most:8.3f}"


def spread(numbers: Sequence[float]) -> Spread:
    """Returns the least, the middle and the greatest of some numbers."""
    return Spread(min(numbers), statistics.median(numbers), max(numbers))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Returns the spread of our number over theirs in the same round."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


class Bound(NamedTuple):
    """The numbers between two, both included."""

    least: float
    most: float

    def holds(self, value: float) -> bool:
        """Returns whether a number is in the range; NaN never is."""
        return self.least <= value <= self.most

    def __str__(self) -> str:
        if self.least == -math.inf:
            return f"<= {_short(self.most)}"
        return (
            f">= {_short(self.least)}" if self.most == math.inf else f"{self.least} to {self.most}"
        )


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def at_most(value: float) -> Bound:
    """Returns the bound of what ought to be small."""
    return Bound(-math.inf, value)


def at_least(value: float) -> Bound:
    """Returns the bound of what ought to be large."""
    return Bound(value, math.inf)


# ---- the report ----------------------------------------------------------------------------------


class Report:
    """Prints tables of numbers, and remembers which of them missed their bound."""

    def __init__(self) -> None:
        self._missed: list[str] = []

    def table(self, title: str, note: str = "") -> None:
        """Begins a table; `note` says what the notes of its lines are."""
        print(
            f"\n{title:48}{'least':>8} {'median':>8} {'most':>8}   {note:24}   wanted", flush=True
        )

    def line(
        self,
        name: str,
        value: Spread | float | None,
        wanted: Bound | None = None,
        *,
        note: str = "",
    ) -> None:
        """Prints a line; its number, the median of several, is compared with a bound.

        Without a value, the note says everything.
        """
        number = value.median if isinstance(value, Spread) else value
        middle = "" if number is None else f"{number:8.3f}"
        numbers = str(value) if isinstance(value, Spread) else f"{'':9}{middle:8}{'':9}"
        print(f"{name:48}{numbers}   {note:24}   {wanted or ''}".rstrip(), flush=True)
        if number is not None and wanted is not None and not wanted.holds(number):
            self._missed.append(f"{name} is {number:.4g}, wanted {wanted}")

    def times(self, title: str, measured: Measured) -> None:
        """Prints what rivals cost: wall-clock time, processor time, and the first turn."""
        self.table(f"{title}, seconds", "processor, first turn")
        for name, costs in measured.rounds.items():
            cpu = statistics.median(cost.cpu_seconds for cost in costs)
            note = f"{cpu:9.3f} {measured.first[name].seconds:9.1f}"
            self.line(name, spread([cost.seconds for cost in costs]), note=note)

    def ratio(
        self, name: str, ours: Sequence[Cost], theirs: Sequence[Cost], wanted: Bound | None = None
    ) -> Spread:
        """Prints and returns the ratio of two rivals' seconds; the note has it in CPU time."""
        wall = ratios([c.seconds for c in ours], [c.seconds for c in theirs])
        cpu = ratios([c.cpu_seconds for c in ours], [c.cpu_seconds for c in theirs])
        self.line(name, wall, wanted, note=f"{cpu.median:9.3f}")
        return wall

    def exit_code(self) -> int:
        """Prints what was missed; returns 1 if anything was, else 0."""
        for line in self._missed:
            print(f"missed: {line}")
        return int(bool(self._missed))
