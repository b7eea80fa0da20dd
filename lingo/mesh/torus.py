"""Assigns the devices of a mesh to the cores of a TPU, whose chips form a torus.

Devices communicate most often along the inner axes of a mesh. So the innermost axis takes the cores
of a chip, then a row or a plane of chips if one has the right size, else a box. Each outer axis
repeats the inner ones in the same way. Along a mesh axis the path reverses at the end of a row
(boustrophedon), so that consecutive devices are neighbours.

Axes: N devices, D axes of the torus (x, y, z, core).

    coordinates(topology({"data": 2, "model": 4}), (2, 2, 1, 2))
    # model: (0,0,0,0) (0,0,0,1) (1,0,0,1) (1,0,0,0) for data 0; the same with y = 1 for data 1
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.mesh.topology import Topology


def coordinates(mesh: Topology, torus: Sequence[int]) -> np.ndarray:
    """Returns the torus coordinates of each device of a mesh, numbered row-major, int64 [N, D].

    `torus` is the number of chips along x, y and z, and of cores per chip; a core is a device.
    """
    cores = math.prod(torus)
    if mesh.num_devices != cores:
        raise ParamError(
            f"a mesh of {mesh.num_devices} devices ({mesh}) does not fit a TPU of"
            f" {cores} cores, {' x '.join(map(str, torus))}: it has to use all of them"
        )
    result = np.zeros((cores, len(torus)), np.int64)
    positions = np.indices(mesh.shape).reshape(len(mesh.shape), -1)
    for place, position in zip(places(mesh, torus), positions, strict=True):
        result += _walk(place.repeats)[position] * place.box
    return result


class AxisPlacement(NamedTuple):
    """The devices along a mesh axis: copies of a box, which holds the axes inside this one."""

    box: tuple[int, ...]  # devices of the box along each axis of the torus
    repeats: tuple[int, ...]  # how often the mesh axis repeats the box along each axis of the torus


def places(mesh: Topology, torus: Sequence[int], *, num_inner: int = 1) -> list[AxisPlacement]:
    """Returns where each mesh axis lies on the torus; mesh and torus have as many devices.

    The last `num_inner` axes of the torus, such as cores of a chip or switches inside each other,
    are filled first, from the last axis on.
    """
    inner_first: list[AxisPlacement] = []
    box = [1] * len(torus)
    for size in reversed(mesh.shape):
        repeats = _repeats(size, box, torus, num_inner)
        inner_first.append(AxisPlacement(tuple(box), tuple(repeats)))
        box = [n * k for n, k in zip(box, repeats, strict=True)]
    return inner_first[::-1]


def _repeats(size: int, box: Sequence[int], torus: Sequence[int], num_inner: int) -> list[int]:
    """Returns how often a mesh axis repeats the inner box along each axis of the torus."""
    chips = range(len(torus) - num_inner)
    repeats = [1] * len(torus)
    for axis in reversed(range(len(chips), len(torus))):
        repeats[axis] = math.gcd(size, torus[axis] // box[axis])
        size //= repeats[axis]
    free = [axis for axis in chips if box[axis] == 1]
    for number in range(1, len(free) + 1):
        for axes in itertools.combinations(free, number):
            if size > 1 and math.prod(torus[axis] for axis in axes) == size:
                return [torus[i] if i in axes else n for i, n in enumerate(repeats)]
    for prime in _primes(size):
        filled = [n * k for n, k in zip(box, repeats, strict=True)]
        fitting = [i for i, n in enumerate(filled) if torus[i] // n % prime == 0]
        repeats[min(fitting, key=filled.__getitem__)] *= prime
    return repeats


def _primes(number: int) -> Iterator[int]:
    """Yields the prime factors of a number in ascending order."""
    factor = 2
    while number > 1:
        while number % factor == 0:
            yield factor
            number //= factor
        factor += 1


def _walk(sizes: Sequence[int]) -> np.ndarray:
    """Returns the positions of a box, each a neighbour of the one before: int64 [N, D]."""
    walk = np.indices(sizes).reshape(len(sizes), -1)
    number = np.arange(math.prod(sizes))
    for axis, size in enumerate(sizes):
        turned = number // math.prod(sizes[axis:]) % 2 == 1
        walk[axis, turned] = size - 1 - walk[axis, turned]
    return walk.T
