"""A watchdog expects signs of life from the training loop, once its first steps are done.

    with watchdog:
        program = WatchedProgram(program, watchdog)
        while ...:
            program.train(batches)          # the first call has no time limit, and arms it
            with watchdog.extend():
                save()
    save()                                  # after the block: extended until the process ends

If none comes in time, a timer of `faulthandler` writes the stacks of all threads: it is a C thread
that needs neither the interpreter nor the GIL. `supervisor` reads them and decides.

Axes: K steps, B batch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from lingo.decode.decoding import Decoding
from lingo.runtimes.runtime import Program

SLOW_FACTOR = 20
"""The number of timeouts that something slow, such as a save, may take.

The time of a save depends on the weights and the disk, not on the steps per call, and a save that
is ended too early would be ended again by every process that resumes the run.
"""


class Watchdog:
    """Restarts a timer at every sign of life, once it is armed."""

    def __init__(self, timeout_seconds: float = 0, file: int = -1) -> None:
        """Expects nothing yet.

        Args:
            timeout_seconds: the time from one sign of life to the next; 0: no limit.
            file: the descriptor of a file that gets the present limit in seconds, in a line, and
                the stacks each time that half of it has passed.
        """
        self._timeout_seconds, self._file = timeout_seconds, file
        self._is_armed = False

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.beat(SLOW_FACTOR)
        self._is_armed = False

    def arm(self) -> None:
        """Expects signs of life from now on."""
        self._is_armed = True
        self.beat()

    def beat(self, factor: float = 1) -> None:
        """Gives a sign of life, and expects the next within `factor` timeouts; 0: no limit."""
        if not (self._is_armed and self._timeout_seconds):
            return
        faulthandler.cancel_dump_traceback_later()
        os.lseek(self._file, 0, os.SEEK_SET)
        os.ftruncate(self._file, 0)
        if seconds := factor * self._timeout_seconds:
            os.write(self._file, b"%g\n" % seconds)
            faulthandler.dump_traceback_later(seconds / 2, repeat=True, file=self._file)

    def extend(self) -> contextlib.AbstractContextManager[None]:
        """Expects the next sign of life within `SLOW_FACTOR` timeouts."""
        return self.expect_within(SLOW_FACTOR)

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Expects no sign of life inside: the body has no time limit."""
        return self.expect_within(0)

    @contextlib.contextmanager
    def expect_within(self, factor: float) -> Iterator[None]:
        """Calls `beat(factor)` before the body and `beat()` after it."""
        self.beat(factor)
        try:
            yield
        finally:
            self.beat()


class WatchedProgram:
    """A program whose calls are signs of life.

    The first call with batches of given shapes compiles, so it has no time limit. The first call
    of `train` arms the watchdog. Batches are those of `Program`: [K, B, ...] arrays for `train`,
    [B, ...] for `evaluate` and `decode`.
    """

    def __init__(self, program: Program, watchdog: Watchdog) -> None:
        """Calls nothing yet; `watchdog` gets the signs of life."""
        self._program, self._watchdog = program, watchdog
        self._compiled: set[Any] = set()
        self.compile, self.graph = program.compile, program.graph
        self.example_slice = program.example_slice
        self.state, self.load = program.state, program.load

    def train(self, batches: Mapping[str, np.ndarray]) -> dict[str, Any]:
        report = self._call(self._program.train, batches)
        self._watchdog.arm()
        return report

    def evaluate(self, batch: Mapping[str, np.ndarray], **options: Any) -> dict[str, Any]:
        return self._call(self._program.evaluate, batch, **options)

    def decode(
        self, batch: Mapping[str, np.ndarray], decoding: Decoding, **options: Any
    ) -> dict[str, np.ndarray]:
        return self._call(self._program.decode, batch, decoding, **options)

    def _call(
        self,
        method: Callable[..., Any],
        batch: Mapping[str, np.ndarray],
        *decoding: Decoding,
        **options: Any,
    ) -> Any:
        shapes = tuple((name, array.shape) for name, array in sorted(batch.items()))
        compiled = (method.__name__, *decoding, options.get("weights"), shapes)
        is_known = compiled in self._compiled
        with self._watchdog.expect_within(1 if is_known else 0):
            result = method(batch, *decoding, **options)
        self._compiled.add(compiled)
        return result
