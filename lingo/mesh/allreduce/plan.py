"""Plans of all-reduce, and the ring reduce-scatter that most plans are made of.

Axes: G rings at once, p chips of a ring, M messages of a step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingo.mesh.allreduce.grid import Grid


class Transfers(NamedTuple):
    """Messages of one step. Each has `num_chunks` chunks, from `first` on, to add or to copy."""

    source: NDArray[np.int64]  # [M] ids of the chips that send
    target: NDArray[np.int64]  # [M] ids of the chips that receive
    first: NDArray[np.int64]  # [M] numbers of the first chunks
    num_chunks: int
    adds: bool = True

    def mirror(self) -> Transfers:
        """Returns the way back: the same chunks from target to source, copied."""
        return self._replace(source=self.target, target=self.source, adds=False)


Step = tuple[Transfers, ...]
"""One step: its messages are sent at once, with the values from before the step."""


class AllReducePlan(NamedTuple):
    """The steps that reduce; the steps that gather are their mirror."""

    name: str  # the planner's
    grid: Grid
    num_chunks: int
    reduce: tuple[Step, ...]

    def gather(self) -> Iterator[Step]:
        """Yields the steps that spread the complete chunks."""
        for step in reversed(self.reduce):
            yield tuple(transfers.mirror() for transfers in step)

    def steps(self) -> Iterator[Step]:
        """Yields all steps."""
        return itertools.chain(self.reduce, self.gather())

    @property
    def num_steps(self) -> int:
        return 2 * len(self.reduce)


def merge_steps(*streams: Iterable[Step]) -> tuple[Step, ...]:
    """Merges streams that run at the same time: step i of the result has step i of each stream."""
    together = itertools.zip_longest(*streams, fillvalue=())
    return tuple(tuple(itertools.chain.from_iterable(steps)) for steps in together)


def ring_steps(
    rings: NDArray[np.int64], first: NDArray[np.int64], count: int
) -> Iterator[tuple[Transfers]]:
    """Yields p - 1 steps, after which chip i of a ring has the sum of piece i.

    Each chip sends a piece to the next chip, which adds its own and sends the sum in the next step:
    piece k starts at the chip after chip k, and ends at chip k (Patarasuk and Yuan 2009).

    Args:
        rings: [G, p], ids in the order of each ring.
        first: [G, p], first chunk of each piece.
        count: chunks of a piece.
    """
    _, p = rings.shape
    source, target = rings.ravel(), np.roll(rings, -1, axis=1).ravel()
    for step in range(p - 1):
        pieces = (np.arange(p, dtype=np.int64) - 1 - step) % p
        yield (Transfers(source, target, first[:, pieces].ravel(), count),)


def ring_order(size: int, *, is_closed: bool) -> NDArray[np.int64]:
    """Returns the order in which a ring visits chips of an axis: int64 [size].

    On a line, the ring goes out by every second chip and returns by the other chips, so that no hop
    is longer than 2 and no link carries two messages.
    """
    if is_closed:
        return np.arange(size)
    return np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)[::-1]])
