"""Where the devices of a mesh stand on a TPU, whose chips are neighbours on a torus.

What is exchanged along the inner axes of a mesh is exchanged most often. So the innermost axis
takes the cores of a chip, then a row or a plane of chips if one has just its size, else a box; each
axis outside it repeats what is inside, in the same way. Along an axis the walk turns round at the
end of a row, as an ox ploughs: one step leads to a neighbour.

    coordinates(topology({"data": 2, "model": 4}), (2, 2, 1, 2))
    # model: (0,0,0,0) (0,0,0,1) (1,0,0,1) (1,0,0,0) for data 0; the same with y = 1 for data 1
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from lingo.config.params import ParamError
from lingo.mesh.topology import Topology


def coordinates(mesh: Topology, torus: Sequence[int]) -> np.ndarray:
    """Returns where each device of a mesh stands, int64 [number of devices, 4].

    Args:
        mesh: the devices, numbered row-major.
        torus: of the TPU: chips along x, y and z, cores of a chip.

    Raises:
        ParamError: if there are more devices or fewer than cores.
    """
    cores = math.prod(torus)
    if mesh.num_devices != cores:
        sizes = ", ".join(f"{axis}={size}" for axis, size in mesh.sizes if size > 1)
        raise ParamError(
            f"a mesh of {mesh.num_devices} devices ({sizes or 'all axes 1'}) does not fit a TPU of"
            f" {cores} cores, {' x '.join(map(str, torus))}: it takes all of them"
        )
    box = [1] * len(torus)  # what the axes so far fill
    found = np.zeros((cores, len(torus)), np.int64)
    places = np.indices(mesh.shape).reshape(len(mesh.shape), -1)
    for size, place in zip(mesh.shape[::-1], places[::-1], strict=True):
        repeats = _repeats(size, box, torus)
        found += _walk(repeats)[place] * box
        box = [n * k for n, k in zip(box, repeats, strict=True)]
    return found


def _repeats(size: int, box: Sequence[int], torus: Sequence[int]) -> list[int]:
    """Returns how often along each axis of the torus one of the mesh repeats what is inside."""
    *chips, core = range(len(torus))
    repeats = [1] * len(torus)
    repeats[core] = math.gcd(size, torus[core] // box[core])
    size //= repeats[core]
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
    """Yields the prime factors of a number, the largest last."""
    factor = 2
    while number > 1:
        while number % factor == 0:
            yield factor
            number //= factor
        factor += 1


def _walk(sizes: Sequence[int]) -> np.ndarray:
    """Returns the places of a box in an order in which each is beside the one before, [N, 4]."""
    walk = np.indices(sizes).reshape(len(sizes), -1)
    number = np.arange(math.prod(sizes))
    for axis, size in enumerate(sizes):
        turned = number // math.prod(sizes[axis:]) % 2 == 1
        walk[axis, turned] = size - 1 - walk[axis, turned]
    return walk.T
