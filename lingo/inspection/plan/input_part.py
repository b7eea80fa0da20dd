"""Predicts whether input keeps up with the devices, and how long a step takes that waits for it.

A host is a machine with some of the devices. Each host makes the examples for the shards of the
batch that its devices compute. Devices of one host that compute the same shard share its examples.
If devices of two hosts compute the same shard, both hosts make its examples, as `Rows` of a mesh
does. Rates are per core, given or measured on this machine, and are assumed to add up over the
cores of a host.

Hosts may take unequal times for their batches, and a step waits for the slowest host;
`simulate_step` simulates this. Host h makes batches one after another. Batch j takes X[h, j]
seconds, and begins once batch j - k was taken: at most k batches are ready or being made
(`lingo/data/prefetch.py`). Step j begins when all hosts have batch j, and the step before is done:

    F[h, j] = max(F[h, j-1], S[j-k]) + X[h, j]        host h has finished batch j
    S[j]    = max(S[j-1] + step, max over h F[h, j])  step j begins

X is drawn from a gamma distribution, which is exponential if its coefficient of variation is 1.
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
    """The cores and hosts that input needs to keep up with a step, and the time of a step."""

    cores: float  # cores that each host needs, so that the step does not wait
    hosts: int  # number of hosts that would have all these cores together
    limit: Literal["step", "input"]  # whether the devices' step or the input takes longer
    even_seconds: float  # time of a step, if all cores make examples at a constant rate
    slowdown: float  # simulated step time over `even_seconds`; 1 if batches take equal times
    simulated_steps: int  # number of simulated steps; 0 if batches take equal times
    one_thread_seconds: float  # time of a step, if one thread per host makes examples, as in lingo

    @property
    def step_seconds(self) -> float:
        """The time of a step, if it waits for the slowest host."""
        return self.even_seconds * self.slowdown


class InputPart(NamedTuple):
    """The examples that a step takes, and the hosts that make them."""

    hosts: int  # number of hosts
    cores_per_host: int
    host_examples: int  # number of examples that each host makes per step
    examples_per_second: float  # rate at which all devices together take examples
    bytes_per_second: float  # the same rate in bytes
    need: InputNeed | None  # None if it is not known how many examples a core makes per second


def host_examples(
    mesh: Topology, batch_axes: Container[str], *, batch_size: int, devices_per_host: int
) -> int:
    """Returns how many examples of a batch the first host makes.

    This host has the first `devices_per_host` devices of the mesh.
    """
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
    """Returns the input of one way to run an experiment.

    Args:
        hardware: the devices and their hosts.
        num_devices: number of devices that run the experiment.
        examples: number of examples that each host makes per step.
        batch_size: number of examples in a step's batch, for all devices.
        batch_bytes: bytes of this batch.
        step_seconds: time of a step that does not wait for input.
        rate: examples per second of one core; None: not known.
    """
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
"""The largest number of examples in a batch whose making is timed."""


class InputRate(NamedTuple):
    """How fast an input makes examples on one CPU core."""

    examples_per_second: float
    variation: float = 0.0  # coefficient of variation of the time in which a host makes a batch
    source: str = "given"  # where the numbers come from, as text for the reader


def measure(
    data: Input,
    num_examples: int,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    core_clock: Callable[[], float] = time.process_time,
) -> InputRate:
    """Opens an input's data, and measures how fast this machine makes its examples.

    The rate is per second of CPU time, since a thread that waits for a disk needs no core. The
    variation is measured over the times of whole batches. The first batch, which opens files and
    traces programs, does not count. Raises DataError if data is missing.

    Args:
        data: the input.
        num_examples: number of a step's examples that one host makes; at most MAX_EXAMPLES of them
            are timed.
        seconds: how long batches are made. At least MIN_BATCHES are made, which may take longer.
        clock: returns the time in seconds.
        core_clock: returns the CPU time of this process in seconds.
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
"""The largest number of batch times (steps times hosts) that are drawn, beyond MIN_STEPS steps."""

SEED = 0
EVEN = 1e-6
"""A coefficient of variation below this counts as 0."""


def num_steps(num_hosts: int) -> int:
    """Returns how many steps are simulated, which are fewer with many hosts."""
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
    """Simulates steps that wait for the slowest host, and returns the mean time of a step.

    The first quarter of the steps does not count, since prefetched batches speed them up. Times are
    in seconds.

    Args:
        step_seconds: time of a step on the devices, if it does not wait for input.
        batch_seconds: mean time in which a host makes its part of a batch.
        variation: standard deviation of that time, divided by its mean.
        num_hosts: number of hosts.
        depth: how many batches of a host may be ready or being made at once.
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
