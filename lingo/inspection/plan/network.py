"""Predicts the time of collectives on the network of some hardware, by the alpha-beta model.

A message takes a latency for each hop, and its bytes divided by the bandwidth of the links that
carry it. Mesh axes are placed on the network as on TPUs (`lingo/mesh/torus.py`): inner axes connect
the nearest devices. A collective uses both directions of a ring, and all sides of a torus at once
(Ying et al. 2018, sec. 3.3). Groups of devices that cross the same link share its bandwidth. A
collective uses the inner switch first, then the outer switch with its reduced share of the bytes.

A ring or switch of p devices takes the following time, without latency. S is `num_bytes` of
`Network.seconds`:

    all-gather, reduce-scatter   S (p - 1) / p over the bandwidth
    all-reduce                   the time of a reduce-scatter and an all-gather
    all-to-all                   S p / 8 over a ring link's bandwidth, or
                                 S (p - 1) / p over a switch link's bandwidth
    permute                      S over the bandwidth, to the next device of the axis
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from lingo.inspection.plan.hardware import Dimension, Hardware
from lingo.mesh import torus
from lingo.mesh.split import Axes
from lingo.mesh.topology import Topology

Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "permute"]


class _Hops(NamedTuple):
    """A group of communicating devices, along one dimension of a network."""

    dimension: Dimension
    size: int  # number of devices in the group
    stride: int  # number of hops from one device of the group to the next
    share: int  # number of devices that share a link

    @property
    def is_closed(self) -> bool:
        """Whether the devices form a closed ring."""
        return self.dimension.wraps and self.size * self.stride == self.dimension.size

    @property
    def bandwidth(self) -> float:
        """The bytes per second that a device of the group sends in one direction."""
        return self.dimension.bandwidth / (self.stride * self.share)


class Network:
    """The network that connects the devices of a mesh."""

    def __init__(self, hardware: Hardware, mesh: Topology) -> None:
        """Places the mesh axes on the hardware's network.

        Raises ParamError if the hardware has no network of this number of devices.
        """
        self._axes = mesh.axes
        self._dimensions = hardware.arrange(mesh.num_devices)
        num_inner = len(self._dimensions) - max(hardware.torus, 1)
        inner = self._dimensions[:num_inner][::-1]
        self._share = math.prod(d.size for d in inner) if hardware.torus else 1
        chips = self._dimensions[num_inner:]
        sizes = [*(d.size for d in chips), *([d.size for d in inner] or [1])]
        self._order = [*chips, *inner]
        self._hops = functools.cache(self._find_hops)
        found = torus.places(mesh, sizes, num_inner=max(num_inner, 1))
        self._places = dict(zip(mesh.axes, found, strict=True))

    def _find_hops(self, axes: Axes) -> list[_Hops]:
        found = []
        for i, dimension in enumerate(self._order):
            repeats = [(self._places[axis].repeats[i], self._places[axis].box[i]) for axis in axes]
            if (size := math.prod(n for n, _ in repeats)) > 1:
                stride = min(box for n, box in repeats if n > 1)
                share = self._share if dimension.kind == "ring" else 1
                found.append(
                    _Hops(dimension, size, stride if dimension.kind == "ring" else 1, share)
                )
        return found

    def seconds(self, kind: Kind, num_bytes: float, axes: Iterable[str]) -> float:
        """Returns the seconds of a collective between the devices along mesh axes.

        `num_bytes` are the bytes on one device: of the result for an all-gather, of the input for
        any other collective.
        """
        hops = self._hops(tuple(axis for axis in self._axes if axis in set(axes)))
        if not hops:
            return 0.0
        if kind == "all-reduce":
            return 2 * self._gather(num_bytes, hops)
        if kind == "all-to-all":
            return self._exchange(num_bytes, hops)
        if kind == "permute":
            outer = min(hops, key=lambda one: one.bandwidth)
            return outer.dimension.latency * outer.stride + num_bytes / outer.bandwidth
        return self._gather(num_bytes, hops)

    def _gather(self, num_bytes: float, hops: list[_Hops]) -> float:
        rings = [one for one in hops if one.dimension.kind == "ring"]
        seconds, left = 0.0, num_bytes
        for one in reversed(hops):  # from the innermost dimension outwards
            if one.dimension.kind == "switch":
                seconds += left * (one.size - 1) / one.size / one.bandwidth
                seconds += one.dimension.latency * math.log2(one.size)
                left /= one.size
        if rings:
            size = math.prod(one.size for one in rings)
            rate = sum(one.bandwidth * (2 if one.is_closed else 1) for one in rings)
            seconds += left * (size - 1) / size / rate
            for one in rings:
                num_hops = one.stride * (one.size - 1)
                seconds += one.dimension.latency * num_hops / (2 if one.is_closed else 1)
        return seconds

    def _exchange(self, num_bytes: float, hops: list[_Hops]) -> float:
        rings, seconds = [0.0], 0.0
        for one in hops:
            if one.dimension.kind == "switch":
                seconds += num_bytes * (one.size - 1) / one.size / one.bandwidth
                seconds += one.dimension.latency
            else:
                cuts = 2 if one.is_closed else 1
                time = num_bytes * one.size / 4 / cuts / one.bandwidth
                rings.append(time + one.dimension.latency * one.stride * one.size / 2 / cuts)
        return seconds + max(rings)
