"""Programs that take turns: each in a process of its own, one running at a time.

A ratio of times measured minutes apart is a ratio of loads of the machine. Here rivals do a step
each, in turn, many times over; a ratio is taken within a round. Every rival has its own process,
so that no setting of one reaches another.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple


class Cost(NamedTuple):
    """Of one turn.

    Attributes:
        seconds: by the clock on the wall.
        cpu_seconds: of all processors, by this process.
    """

    seconds: float
    cpu_seconds: float


class Turns:
    """A rival's side: `with turns.turn(): step()` waits until it may, and is measured."""

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
        """Waits for the turn. The process ends here when there is none to come."""
        try:
            self._pipe.recv()
        except EOFError:
            raise SystemExit(0) from None
        self._began = Cost(time.perf_counter(), time.process_time())

    def end(self) -> None:
        """Ends the turn."""
        before = self._began
        self._pipe.send(
            Cost(time.perf_counter() - before.seconds, time.process_time() - before.cpu_seconds)
        )


Rival = Callable[[Turns], None]
"""Takes turns for ever; a function of a module, or a partial of one."""


class Process:
    """A rival at work."""

    def __init__(self, rival: Rival, environment: Mapping[str, str] | None = None) -> None:
        """Starts it, with environment variables beside those that there are."""
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_work, args=(rival, theirs), daemon=True)
        before = dict(os.environ)
        os.environ.update(environment or {})
        try:
            self._process.start()  # it inherits them
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()

    def turn(self) -> Cost:
        """Lets it take a turn.

        Raises:
            EOFError: if it ended by an error, which it printed.
        """
        self._pipe.send(None)
        return self._pipe.recv()

    def peak_megabytes(self) -> float:
        """Returns the most memory that it has held."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(found[1]) / 1024 if found else 0.0

    def forget_peak(self) -> None:
        """Makes `peak_megabytes` that of what comes now."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def close(self) -> None:
        """Ends it."""
        self._pipe.close()
        self._process.join()


def _work(rival: Rival, pipe: Connection) -> None:
    rival(Turns(pipe))


class Measured(NamedTuple):
    """What rivals cost, by name.

    Attributes:
        first: of each the first turn, in which it compiles.
        rounds: of each as many turns as there were rounds.
    """

    first: dict[str, Cost]
    rounds: dict[str, list[Cost]]


def measure(rivals: Mapping[str, Rival], *, num: int) -> Measured:
    """Lets rivals take turns: one each to compile, then `num` rounds."""
    with contextlib.ExitStack() as stack:
        working = {name: Process(rival) for name, rival in rivals.items()}
        for process in working.values():
            stack.callback(process.close)
        first = {name: process.turn() for name, process in working.items()}
        costs: dict[str, list[Cost]] = {name: [] for name in rivals}
        for _ in range(num):
            for name, process in working.items():
                costs[name].append(process.turn())
    return Measured(first, costs)


class Spread(NamedTuple):
    """How far some numbers differ."""

    least: float
    median: float
    most: float

    def __str__(self) -> str:
        return f"{self.least:8.3f} {self.median:8.3f} {self.most:8.3f}"


def spread(numbers: Sequence[float]) -> Spread:
    """Returns the least, the middle and the greatest of some numbers."""
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    median = (ordered[middle] + ordered[~middle]) / 2
    return Spread(ordered[0], median, ordered[-1])
