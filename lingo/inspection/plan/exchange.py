"""Collectives of a step, added up by kind, mesh axes and purpose.

A compiler combines small tensors that are ready together into one collective, whose latency is that
of one (XLA's `AllReduceCombiner`, `AllGatherCombiner` and `ReduceScatterCombiner`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from lingo.inspection.plan.network import Kind, Network
from lingo.mesh.split import Axes
from lingo.mesh.topology import Topology

Purpose = Literal["weights", "gradients", "activations", "experts", "images", "stages"]
"""What is exchanged; `weights` are gathered, `gradients` summed."""


class Exchange(NamedTuple):
    """Collectives of one kind and purpose in a step."""

    kind: Kind
    axes: Axes  # mesh axes along which devices exchange
    purpose: Purpose
    tensors: float = 0  # how many
    bytes: float = 0  # of all of them on one device
    collectives: float = 0  # that exchange them: as many, unless some are combined

    def seconds(self, network: Network) -> float:
        """Returns the time of all of them."""
        number = max(1.0, self.collectives)
        return number * network.seconds(self.kind, self.bytes / number, self.axes)

    def combine(self, most_bytes: float, *, iterations: float = 1) -> Exchange:
        """Returns the exchange with its tensors combined, those of each iteration of a loop.

        Collectives are of up to `most_bytes`, but a larger tensor stays whole; 0 combines nothing.
        """
        if not most_bytes:
            return self
        number = iterations * math.ceil(self.bytes / (iterations * most_bytes))
        return self._replace(collectives=min(self.collectives, number))


class Exchanges:
    """Sums of collectives."""

    def __init__(self, mesh: Topology) -> None:
        self._mesh = mesh
        self._sums: dict[Exchange, Exchange] = {}

    def add(
        self,
        kind: Kind,
        axes: Iterable[str],
        purpose: Purpose,
        num_bytes: float,
        tensors: float = 1,
    ) -> None:
        """Adds tensors of so many bytes in all; along axes of one device there are none."""
        names = set(axes)
        names = tuple(axis for axis, size in self._mesh.sizes if axis in names and size > 1)
        if names and num_bytes:
            self._add(Exchange(kind, names, purpose), tensors, num_bytes, tensors)

    def add_exchange(self, one: Exchange, *, number: float = 1, calls: float = 1) -> None:
        """Adds equal exchanges: so many times the bytes, in so many times the tensors."""
        key = Exchange(one.kind, one.axes, one.purpose)
        self._add(key, calls * one.tensors, number * one.bytes, calls * one.collectives)

    def _add(self, key: Exchange, tensors: float, num_bytes: float, collectives: float) -> None:
        before = self._sums.get(key, key)
        self._sums[key] = key._replace(
            tensors=before.tensors + tensors,
            bytes=before.bytes + num_bytes,
            collectives=before.collectives + collectives,
        )

    def size(self, axis: str) -> int:
        """Returns the number of devices along a mesh axis."""
        return self._mesh.size([axis])

    def __iter__(self) -> Iterator[Exchange]:
        return iter(self._sums.values())
