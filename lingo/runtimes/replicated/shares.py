"""How replicas share a batch: all get equally many examples; padding examples have weight 0.

Examples stay in order: those of the first process come first, and of these those of its first
replica.

Axes: B examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Shares(NamedTuple):
    """The share of one process.

    Attributes:
        index: of the process.
        num_processes: number of processes that share a batch.
        num_replicas: number of replicas of each process.
    """

    index: int
    num_processes: int
    num_replicas: int

    def largest(self, size: int) -> int:
        """Returns the largest number of examples that a process has of a batch of `size`."""
        return -(-size // self.num_processes)

    def example_slice(self, size: int) -> slice:
        """Returns which examples of a batch this process has: an empty slice if there are too few.

        Args:
            size: B of the whole batch, over all processes.
        """
        each = self.largest(size)
        return slice(min(self.index * each, size), min((self.index + 1) * each, size))

    def replica_size(self, most: int, *, multiple_of: int = 1) -> int:
        """Returns how many examples each replica computes, padding included.

        Args:
            most: number of examples of the process that has the most.
            multiple_of: the number that a replica's batch must be a multiple of.
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
        """Returns the padded batch of each replica of this process.

        Args:
            batch: name -> [..., B of this process, ...], any dtype.
            most: number of examples of the process that has the most.
            axis: the axis that is B.
            multiple_of: the number that a replica's batch must be a multiple of.
            repeat: whether to pad with copies of the last example; else with zeros, so that the
                weight of a padding example is 0.

        Returns:
            name -> an array [..., replica_size, ...] for each replica.
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
        """Returns the results of a batch without those of padding examples.

        Args:
            rows: [all examples of all replicas, padding included, ...], any dtype.
            sizes: number of examples of each process without padding.

        Returns:
            [B, ...], B being the sum of `sizes`.
        """
        parts = np.split(rows, self.num_processes)
        return np.concatenate([part[:size] for part, size in zip(parts, sizes, strict=True)])
