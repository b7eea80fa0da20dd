"""Training throughput: steps, examples, tokens and model FLOPs per second.

Axes: K steps, B batch.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from lingo.contract import Experiment


class Work:
    """Counts the examples, tokens and FLOPs of batches."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._flops: dict[int, int] = {}

    def count(self, number: int, batches: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the examples, tokens and model FLOPs of [K, B, ...] batches of one shape.

        `number` is the index of the first batch. `batches` have only this process's examples; the
        other processes are assumed to have equally many examples and tokens. `weights` are [K, B]:
        padding (weight 0) counts in FLOPs only.
        """
        num_rows = self._experiment.train_input.num_rows(number)
        num_steps, fed = batches["weights"].shape
        counts = {"examples": float(np.sum(batches["weights"]))}
        if "segments" in batches:
            counts["tokens"] = float(np.count_nonzero(batches["segments"]))
        work = {what: num_rows / max(fed, 1) * count for what, count in counts.items()}
        return work | {"flops": float(num_steps * self._step_flops(number, batches, num_rows))}

    def _step_flops(self, number: int, batches: Mapping[str, np.ndarray], num_rows: int) -> int:
        shape = self._experiment.train_input.shape_id(number)
        if shape not in self._flops:
            specs = {k: ((num_rows, *v.shape[2:]), v.dtype.name) for k, v in batches.items()}
            self._flops[shape] = self._experiment.step_flops(specs)
        return self._flops[shape]


FAST_STEP_MS = 10.0
"""In a step shorter than this, the call of the program may take a good part of the time."""

LONG_STEPS = 1000
"""Advice on speed is worth a line if at least this many steps are left."""


def advise_loop(rates: Mapping[str, float], *, steps_per_loop: int, steps_left: int) -> str:
    """Returns a line on how to train faster, or ""; `rates` are from `Throughput.read`.

    This is only advice: lingo does not choose `steps_per_loop` by the measured time of a step. The
    step at which a run stops or rewinds after an anomaly depends on `steps_per_loop`, and this step
    must not depend on how busy the machine is.
    """
    milliseconds = rates.get("perf/step_time_ms", math.inf)
    if milliseconds >= FAST_STEP_MS or steps_per_loop > 1 or steps_left < LONG_STEPS:
        return ""
    return (
        f"a step takes {milliseconds:.1f} ms: --set=steps_per_loop=10 does ten by one call of the"
        " program, which may be faster"
    )


class Throughput:
    """Measures throughput, without the time inside `pause` (evaluation, checkpoints)."""

    def __init__(
        self,
        *,
        peak_flops_per_second: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Starts counting. The peak is of matrix products on all devices together; 0: unknown."""
        self._peak, self._clock = peak_flops_per_second, clock
        self._reset()

    @contextlib.contextmanager
    def count_wait(self) -> Iterator[None]:
        """Counts the time of the body as time in which the devices have no data."""
        start = self._clock()
        try:
            yield
        finally:
            self._waited += self._clock() - start

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leaves out the time of the body, which is not training."""
        start = self._clock()
        try:
            yield
        finally:
            self._start += self._clock() - start

    def add(self, *, steps: int, examples: float, tokens: float = 0, flops: float = 0) -> None:
        """Adds steps, and the total of their examples, tokens and model FLOPs."""
        self._steps += steps
        self._examples += examples
        self._tokens += tokens
        self._flops += flops

    def read(self) -> dict[str, float]:
        """Returns the throughput since the last call, by TensorBoard tag, and restarts counting.

        `perf/tokens_per_sec` is left out if there are no tokens, `model_flops_utilization`
        (Chowdhery et al. 2022, app. B) if the FLOPs or the peak are unknown. Without steps, the
        result is empty.
        """
        seconds = max(self._clock() - self._start, 1e-9)
        rates = {
            "perf/steps_per_sec": self._steps / seconds,
            "perf/examples_per_sec": self._examples / seconds,
            "perf/tokens_per_sec": self._tokens / seconds,
            "perf/step_time_ms": 1000 * seconds / max(self._steps, 1),
            "perf/input_wait_fraction": min(self._waited / seconds, 1.0),
        }
        if self._peak and self._flops:
            rates["perf/model_flops_utilization"] = self._flops / self._peak / seconds
        if not self._tokens:
            del rates["perf/tokens_per_sec"]
        if not self._steps:
            rates = {}
        self._reset()
        return rates

    def _reset(self) -> None:
        self._start, self._waited = self._clock(), 0.0
        self._steps, self._examples, self._tokens, self._flops = 0, 0.0, 0.0, 0.0
