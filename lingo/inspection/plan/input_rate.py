"""How fast one core of a host makes examples: given, or measured on this machine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lingo.data.input import Input

SECONDS, MIN_BATCHES = 3.0, 5
MAX_EXAMPLES = 256
"""Examples of a batch that is timed, at most."""


class InputRate(NamedTuple):
    """The rate of an input on one core."""

    examples_per_second: float
    variation: float = 0.0  # coefficient of variation of the time of a host's batches
    source: str = "given"  # where the numbers come from, in words


def measure(
    data: Input,
    num_examples: int,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    core_clock: Callable[[], float] = time.process_time,
) -> InputRate:
    """Returns the rate of an input on this machine, whose data is opened.

    Examples are counted over the seconds that all threads computed: what waits for a disk needs no
    core. The variation is that of the time of whole batches. The first batch, which opens files and
    traces programs, does not count. Raises DataError if data is missing.

    Args:
        num_examples: of a step, that one host makes; batches of MAX_EXAMPLES are timed at most.
        seconds: how long batches are made; MIN_BATCHES may take longer.
    """
    data.prepare()
    rows = slice(0, min(num_examples, MAX_EXAMPLES))
    data.batch(0, rows=rows)
    times, made, used = list[float](), 0, 0.0
    for step in itertools.count(1):
        start, busy = clock(), core_clock()
        made += len(data.batch(step, rows=rows)["rows"])
        times.append(clock() - start)
        used += core_clock() - busy
        if sum(times) >= seconds and len(times) >= MIN_BATCHES:
            break
    return InputRate(
        examples_per_second=made / max(used, 1e-9),
        variation=float(np.std(times) / max(np.mean(times), 1e-9)),
        source=f"measured here on {len(times):,} batches of {rows.stop:,}",
    )
