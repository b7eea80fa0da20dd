"""What the input of a way needs: hosts, their cores, and the time of a step that waits for it.

Each host makes the examples of the parts of the batch that its devices have; devices that share a
part share its host's examples, or make them again on another host, as `Rows` of a mesh
does. Rates are those of one core, given or measured on this machine, and are assumed to add up over
the cores of a host.

Batches of hosts may take unequal times, and a step waits for the slowest host; `simulate_step`
simulates this. Host h makes batches one after another; batch j takes it X[h, j] seconds, and may
begin once batch j - k was taken, if k are ready or being made (`lingo/data/prefetch.py`). Step j
begins when all hosts have batch j, and the step before is done:

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
    """What a step needs of hosts that make examples at a rate."""

    cores: float  # of each host, so that the step does not wait
    hosts: int  # that have so many in all, if each has as many as the hardware's
    limit: Literal["step", "input"]  # what takes longer
    even_seconds: float  # of a step, if all cores make examples and all hosts are alike
    slowdown: float  # of uneven hosts over even ones, simulated; 1 without variation
    simulated_steps: int  # 0 without variation
    one_thread_seconds: float  # of a step, if one thread of each host makes examples, as lingo's

    @property
    def step_seconds(self) -> float:
        """Of a step that waits for the slowest host."""
        return self.even_seconds * self.slowdown


class InputPart(NamedTuple):
    """The input of a step."""

    hosts: int
    cores_per_host: int
    host_examples: int  # of a step, that each host makes
    examples_per_second: float  # that the devices take
    bytes_per_second: float
    need: InputNeed | None  # None if the rate of a core is not known


def host_examples(
    mesh: Topology, batch_axes: Container[str], *, batch_size: int, devices_per_host: int
) -> int:
    """Returns how many examples of a batch the first host makes, whose devices are the first."""
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
    """Returns what a way needs of its input; `examples` are those of a host in a step."""
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


# ---- uneven hosts --------------------------------------------------------------------------------


MAX_STEPS, MIN_STEPS = 2000, 50
MAX_DRAWS = 5_000_000
"""Times of batches that are drawn, unless MIN_STEPS need more."""

SEED = 0
EVEN = 1e-6
"""Variations below it are none."""


def num_steps(num_hosts: int) -> int:
    """Returns how many steps of so many hosts are simulated: fewer of many hosts."""
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
    """Returns the mean seconds from one step to the next, after a first quarter of the steps.

    Args:
        step_seconds: of the devices alone.
        batch_seconds: mean time in which a host makes its part of a batch.
        variation: coefficient of variation of that time, its standard deviation over its mean.
        depth: how many batches of a host are ready or being made.
        steps: how many are simulated; None: `num_steps` of the hosts.
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
