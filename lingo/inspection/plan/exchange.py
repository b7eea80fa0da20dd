"""Collectives of a step, added up by kind, mesh axes and purpose."""

from __future__ import annotations

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

    def seconds(self, network: Network) -> float:
        """Returns the time of all of them."""
        number = max(1.0, self.tensors)
        return number * network.seconds(self.kind, self.bytes / number, self.axes)


class Exchanges:
    """Sums of collectives."""

    def __init__(self, mesh: Topology) -> None:
        self._mesh = mesh
        self._sums: dict[Exchange, tuple[float, float]] = {}

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
            key = Exchange(kind, names, purpose)
            before = self._sums.get(key, (0, 0))
            self._sums[key] = (before[0] + tensors, before[1] + num_bytes)

    def add_exchange(self, one: Exchange, *, number: float = 1, calls: float = 1) -> None:
        """Adds equal exchanges: so many times the bytes, in so many times the tensors."""
        self.add(one.kind, one.axes, one.purpose, number * one.bytes, calls * one.tensors)

    def size(self, axis: str) -> int:
        """Returns the number of devices along a mesh axis."""
        return self._mesh.size([axis])

    def __iter__(self) -> Iterator[Exchange]:
        for key, (tensors, num_bytes) in self._sums.items():
            yield key._replace(tensors=tensors, bytes=num_bytes)
