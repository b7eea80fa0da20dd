"""A watchdog: tells whoever supervises the process that things go on, or that they need not.

    with watchdog:
        program = Watched(program, watchdog)
        while ...:
            program.train(batches)          # the first one takes as long as it likes, and arms it
            with watchdog.slow():
                save()
    save()                                  # left, it is slow until the process ends

It is a counter in memory that another process sees (`supervisor`). While it is zero, nothing is
expected; otherwise it must change, and soon if it is positive.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.decode.decoding import Decoding
from lingo.learner.state import TrainState, WhichWeights
from lingo.runtimes.runtime import Program

COUNTER = struct.Struct("q")
SLOW_FACTOR = 20
"""How many times as long as a loop of steps something slow may take.

A save does not take longer with more steps in a loop, but with more weights and a slower disk, and
one that is ended too early would be ended again by every process that goes on with the run.
"""


class Watchdog:
    """Counts signs of life, once it is armed."""

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        """Expects nothing yet.

        Args:
            memory: shared with a supervisor; without one nobody watches.
        """
        self._memory = bytearray(COUNTER.size) if memory is None else memory
        self._beats = 0
        self._is_armed = False

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._relax()
        self._is_armed = False

    def arm(self) -> None:
        """Expects signs of life from now on."""
        self._is_armed = True
        self.beat()

    def beat(self) -> None:
        """Gives a sign of life."""
        self._beats += 1
        if self._is_armed:
            self._write(self._beats)

    @contextlib.contextmanager
    def slow(self) -> Iterator[None]:
        """Expects the next sign of life in a longer time: `SLOW_FACTOR`."""
        self._relax()
        try:
            yield
        finally:
            self.beat()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Expects nothing inside: what happens there may take as long as it likes."""
        self._write(0)
        try:
            yield
        finally:
            self.beat()

    def _relax(self) -> None:
        self._beats += 1
        if self._is_armed:
            self._write(-self._beats)

    def _write(self, count: int) -> None:
        COUNTER.pack_into(self._memory, 0, count)


class Watched:
    """A program each call of which is a sign of life.

    The first call with batches of some shapes compiles, so it is not watched. The first steps that
    are done arm the watchdog.
    """

    def __init__(self, program: Program, watchdog: Watchdog) -> None:
        """Calls nothing yet.

        Args:
            program: does the work.
            watchdog: hears of every call.
        """
        self._program, self._watchdog = program, watchdog
        self._seen: set[Any] = set()

    def compile(self, specs: Specs, *, num_steps: int) -> None:
        with self._watchdog.paused():
            self._program.compile(specs, num_steps=num_steps)

    def graph(self, specs: Specs) -> tf.Graph:
        with self._watchdog.paused():
            return self._program.graph(specs)

    def train(self, batches: Mapping[str, np.ndarray]) -> dict[str, Any]:
        with self._watching(batches, "train"):
            report = self._program.train(batches)
        self._watchdog.arm()
        return report

    def evaluate(
        self, batch: Mapping[str, np.ndarray], *, weights: WhichWeights = "trained"
    ) -> dict[str, Any]:
        with self._watching(batch, "evaluate", weights):
            return self._program.evaluate(batch, weights=weights)

    def decode(
        self,
        batch: Mapping[str, np.ndarray],
        decoding: Decoding,
        *,
        seed: int = 0,
        weights: WhichWeights = "trained",
    ) -> dict[str, np.ndarray]:
        with self._watching(batch, "decode", decoding, weights):
            return self._program.decode(batch, decoding, seed=seed, weights=weights)

    def rows(self, size: int) -> slice:
        return self._program.rows(size)

    def state(self, *, alone: bool = False) -> TrainState:
        return self._program.state(alone=alone)

    def load(self, state: TrainState) -> None:
        self._program.load(state)

    @contextlib.contextmanager
    def _watching(self, batch: Mapping[str, np.ndarray], *call: Any) -> Iterator[None]:
        key = (*call, *((name, array.shape) for name, array in sorted(batch.items())))
        if key in self._seen:
            self._watchdog.beat()
            yield
            self._watchdog.beat()
            return
        with self._watchdog.paused():
            yield
        self._seen.add(key)
