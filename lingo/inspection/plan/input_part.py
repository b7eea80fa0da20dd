"""The input of a way to run: hosts, their cores, and the time of a step that waits for input.

Each host makes the examples for the parts of the batch that its devices have. Devices of one host
share the examples of an equal part; other hosts with this part make them again, as `Rows` of a mesh
does. Rates are per core, given or measured on this machine, and are assumed to add up over the
cores of a host.

Hosts may take unequal times for their batches, and a step waits for the slowest host;
`simulate_step` simulates this. Host h makes batches one after another. Batch j takes X[h, j]
seconds, and begins once batch j - k was taken: at most k batches are ready or being made
(`lingo/data/prefetch.py`). Step j begins when all hosts have batch j, and the step before is done:

    F[h, j] = max(F[h, j-1], S[j-k]) + X[h, j]        host h has finished batch j
    S[j]    = max(S[j-1] + step, max over h F[h, j])  step j begins

X are drawn from gamma distributions; a coefficient of variation of 1 is the exponential one.
"""

from __future__ import annotations

import collections
import itertools
import math
import time
from collections.abc import Callable, Container
from typing import Literal, NamedTuple

import numpy as np

from lingo.data import prefetch
from lingo.data.input import Input
from lingo.inspection.plan.hardware import Hardware
from lingo.mesh.topology import Topology


class InputNeed(NamedTuple):
    """The cores and hosts that a step needs, and its time, for a rate of examples per core."""

    cores: float  # of each host, so that the step does not wait
    hosts: int  # how many of the hardware's hosts have all these cores
    limit: Literal["step", "input"]  # the one that takes longer
    even_seconds: float  # of a step, if all cores make examples and all hosts are alike
    slowdown: float  # step time of uneven hosts over even ones, simulated; 1 without variation
    simulated_steps: int  # 0 without variation
    one_thread_seconds: float  # of a step, if one thread per host makes examples, as in lingo

    @property
    def step_seconds(self) -> float:
        """The time of a step that waits for the slowest host."""
        return self.even_seconds * self.slowdown


class InputPart(NamedTuple):
    """The input of a step."""

    hosts: int
    cores_per_host: int
    host_examples: int  # examples that each host makes per step
    examples_per_second: float  # that the devices take
    bytes_per_second: float
    need: InputNeed | None  # None if the rate of a core is not known


def host_examples(
    mesh: Topology, batch_axes: Container[str], *, batch_size: int, devices_per_host: int
) -> int:
    """Returns how many examples of a batch the first host makes, which has the first devices."""
    sizes = [size for _, size in mesh.sizes]
    places = np.unravel_index(np.arange(min(devices_per_host, mesh.num_devices)), sizes)
    split = [i for i, (axis, _) in enumerate(mesh.sizes) if axis in batch_axes]
    part = -(-batch_size // math.prod(sizes[i] for i in split))
    own = {tuple(int(places[i][n]) for i in split) for n in range(len(places[0]))}
    return min(part * len(own), batch_size)


def input_part(
    hardware: Hardware,
    *,
    num_devices: int,
    examples: int,
    batch_size: int,
    batch_bytes: int,
    step_seconds: float,
    rate: InputRate | None,
) -> InputPart:
    """Returns the input of a way to run; `examples` is the number per host and step."""
    hosts = hardware.num_hosts(num_devices)
    return InputPart(
        hosts=hosts,
        cores_per_host=hardware.cores_per_host,
        host_examples=examples,
        examples_per_second=batch_size / step_seconds,
        bytes_per_second=batch_bytes / step_seconds,
        need=rate and _need(hardware.cores_per_host, hosts, examples, step_seconds, rate),
    )


def _need(cores: int, hosts: int, examples: int, step_seconds: float, rate: InputRate) -> InputNeed:
    core_seconds = examples / rate.examples_per_second
    batch_seconds, busy = core_seconds / cores, core_seconds / step_seconds
    even = max(step_seconds, batch_seconds)
    uneven = simulate_step(
        step_seconds=step_seconds,
        batch_seconds=batch_seconds,
        variation=rate.variation,
        num_hosts=hosts,
    )
    return InputNeed(
        cores=busy,
        hosts=max(1, math.ceil(hosts * busy / cores)),
        limit="input" if batch_seconds > step_seconds else "step",
        even_seconds=even,
        slowdown=uneven / even,
        simulated_steps=num_steps(hosts) if rate.variation >= EVEN else 0,
        one_thread_seconds=max(step_seconds, core_seconds),
    )


# ---- rate of a core ------------------------------------------------------------------------------


SECONDS, MIN_BATCHES = 3.0, 5
MAX_EXAMPLES = 256
"""The most examples of a batch that is timed."""


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
    """Opens an input's data, and returns its rate on this machine.

    The rate is per second that threads compute, since a thread that waits for a disk needs no core.
    The variation is of the time of whole batches. The first batch, which opens files and traces
    programs, does not count. Raises DataError if data is missing.

    Args:
        num_examples: examples of a step that one host makes; at most MAX_EXAMPLES are timed.
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


# ---- uneven hosts --------------------------------------------------------------------------------


MAX_STEPS, MIN_STEPS = 2000, 50
MAX_DRAWS = 5_000_000
"""The most batch times that are drawn, unless MIN_STEPS need more."""

SEED = 0
EVEN = 1e-6
"""A smaller variation counts as 0."""


def num_steps(num_hosts: int) -> int:
    """Returns how many steps are simulated: fewer with many hosts."""
    return max(MIN_STEPS, min(MAX_STEPS, MAX_DRAWS // num_hosts))


def simulate_step(
    *,
    step_seconds: float,
    batch_seconds: float,
    variation: float,
    num_hosts: int,
    depth: int = prefetch.DEPTH,
    steps: int | None = None,
) -> float:
    """Returns the mean seconds from one step to the next, without the first quarter of the steps.

    Args:
        step_seconds: time of a step on the devices alone.
        batch_seconds: mean time in which a host makes its part of a batch.
        variation: coefficient of variation of that time, its standard deviation over its mean.
        depth: how many batches of a host are ready or being made.
        steps: how many steps are simulated; None: `num_steps(num_hosts)`.
    """
    if variation < EVEN or not batch_seconds:
        return max(step_seconds, batch_seconds)
    steps = steps or num_steps(num_hosts)
    generator, shape = np.random.default_rng(SEED), variation**-2
    finished, begun = np.zeros(num_hosts), 0.0
    taken = collections.deque([0.0] * depth, maxlen=depth)  # S of the last `depth` steps
    warm, start = steps // 4, 0.0
    for step in range(steps):
        times = generator.gamma(shape, batch_seconds / shape, num_hosts)
        finished = np.maximum(finished, taken[0]) + times
        begun = max(begun + step_seconds, float(finished.max()))
        taken.append(begun)
        if step == warm:
            start = begun
    return (begun - start) / (steps - 1 - warm)
