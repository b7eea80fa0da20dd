"""How replicas share a batch: each gets as many rows, the last ones filled up with weight 0.

Rows stay in order: first those of the first process, and of these first those of its first replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Shares(NamedTuple):
    """The share of one process.

    Attributes:
        index: of the process.
        num_processes: that share a batch.
        num_replicas: of each process.
    """

    index: int
    num_processes: int
    num_replicas: int

    def largest(self, size: int) -> int:
        """Returns the most rows that a process has of a batch."""
        return -(-size // self.num_processes)

    def rows(self, size: int) -> slice:
        """Returns which rows of a batch this process has; none, if there are too few.

        Args:
            size: of the batch, over all processes.
        """
        each = self.largest(size)
        return slice(min(self.index * each, size), min((self.index + 1) * each, size))

    def replica_size(self, most: int, *, multiple_of: int = 1) -> int:
        """Returns how many rows each replica computes.

        Args:
            most: rows of the process that has the most.
            multiple_of: parts that a replica's rows are cut into.
        """
        each = -(-most // self.num_replicas)
        return -(-each // multiple_of) * multiple_of

    def split(
        self,
        batch: Mapping[str, np.ndarray],
        most: int,
        *,
        axis: int = 0,
        multiple_of: int = 1,
        repeat: bool = False,
    ) -> dict[str, tuple[np.ndarray, ...]]:
        """Returns the rows of each replica of this process.

        Args:
            batch: [..., rows of this process, ...] arrays.
            most: rows of the process that has the most.
            axis: along which the rows are.
            multiple_of: parts that a replica's rows are cut into.
            repeat: whether the last row fills up what is missing; else rows of zeros do, whose
                weight is 0, too.
        """
        size = self.replica_size(most, multiple_of=multiple_of)
        found = {}
        for name, array in batch.items():
            there = array.shape[axis]
            missing = [(0, 0)] * array.ndim
            missing[axis] = (0, size * self.num_replicas - there)
            filled = np.pad(array, missing, mode="edge" if repeat and there else "constant")
            found[name] = tuple(np.split(filled, self.num_replicas, axis))
        return found

    def join(self, rows: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
        """Returns the rows of a batch, without those that filled it up.

        Args:
            rows: [all rows that all replicas have computed, ...].
            sizes: how many rows of the batch each process has.
        """
        parts = np.split(rows, self.num_processes)
        return np.concatenate([part[:size] for part, size in zip(parts, sizes, strict=True)])
