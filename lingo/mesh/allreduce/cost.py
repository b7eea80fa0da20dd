"""What a plan costs: steps, bytes, load of links, and seconds by the alpha-beta model.

A step takes the longest latency of its messages, and the time of the link that carries the most
bytes. Steps follow one another. So this is a prediction: it has no start of messages, no overlap
and no traffic of others.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingo.config.params import ParamError
from lingo.mesh.allreduce.grid import Grid, Route
from lingo.mesh.allreduce.plan import Plan, Step


class Cost(NamedTuple):
    """What an all-reduce of some payload costs."""

    steps: int
    padding: int  # elements that make the chunks equal
    bytes_sent: int  # of the chip that sends the most
    bytes_of_all: int  # that chips send
    link_bytes: NDArray[np.float64]  # [links], in one direction
    congestion: int  # most messages on a link in one step, in one direction
    congested_steps: int  # in which there are two or more
    seconds: float

    @property
    def max_link_bytes(self) -> float:
        return float(self.link_bytes.max(initial=0.0))


class _StepCost(NamedTuple):
    sent_bytes: NDArray[np.float64]  # [P] bytes that each chip sends
    link_bytes: NDArray[np.float64]
    congestion: int
    seconds: float


def measure(plan: Plan, num_elements: int, *, element_bytes: int = 4) -> Cost:
    """Returns the cost of a payload of so many elements; raises ParamError if there are none."""
    if num_elements < 1:
        raise ParamError(f"a payload of {num_elements} elements: give 1 or more")
    length = -(-num_elements // plan.num_chunks)
    known: dict[tuple[object, ...], _StepCost] = {}
    times: Counter[tuple[object, ...]] = Counter()
    steps = list(plan.steps())  # keeps the arrays by whose identity a step is known
    route = functools.cache(plan.grid.route)
    for step in steps:
        key = tuple((id(one.source), id(one.target), one.num_chunks) for one in step)
        if key not in known:
            known[key] = _step_cost(step, plan.grid, route, length * element_bytes)
        times[key] += 1
    sent, link_bytes = np.zeros(plan.grid.size), np.zeros(plan.grid.num_links)
    for key, number in times.items():
        sent += number * known[key].sent_bytes
        link_bytes += number * known[key].link_bytes
    return Cost(
        steps=len(steps),
        padding=length * plan.num_chunks - num_elements,
        bytes_sent=int(sent.max()),
        bytes_of_all=int(sent.sum()),
        link_bytes=link_bytes,
        congestion=max((one.congestion for one in known.values()), default=0),
        congested_steps=sum(n for key, n in times.items() if known[key].congestion > 1),
        seconds=sum(n * known[key].seconds for key, n in times.items()),
    )


def _step_cost(
    step: Step, grid: Grid, route: Callable[[int, int], Route], chunk_bytes: int
) -> _StepCost:
    sent, link_bytes = np.zeros(grid.size), np.zeros(grid.num_links)
    messages, latency = np.zeros(grid.num_links, int), 0.0
    for one in step:
        size = one.num_chunks * chunk_bytes
        np.add.at(sent, one.source, size)
        pairs = zip(one.source.tolist(), one.target.tolist(), strict=True)
        found = [route(source, target) for source, target in pairs]
        latency = max([latency, *(one.latency for one in found)])
        links = np.fromiter((link for one in found for link in one.links), int)
        np.add.at(link_bytes, links, size)
        np.add.at(messages, links, 1)
    rates = np.array([grid.axes[grid.link_axis(link)].bandwidth for link in range(grid.num_links)])
    slowest = float((link_bytes / rates).max(initial=0.0))
    return _StepCost(sent, link_bytes, int(messages.max(initial=0)), latency + slowest)
