"""What the input of a way needs: hosts, their cores, and the time of a step that waits for it.

Each host makes the examples of the parts of the batch that its devices have; devices that share a
part share its host's examples, or make them again on another host, as `lingo/runtimes/mesh/rows.py`
does. Rates are those of one core, and are assumed to add up over the cores of a host.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Literal, NamedTuple

import numpy as np

from lingo.inspection.plan.hardware import Hardware
from lingo.inspection.plan.input_rate import InputRate
from lingo.inspection.plan.uneven_hosts import EVEN, num_steps, simulate_step
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
