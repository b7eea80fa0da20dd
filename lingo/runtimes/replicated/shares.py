"""How replicas share a batch: all get equally many examples; padding examples have weight 0.

Examples stay in order: those of the first process come first, and of these those of its first
replica. Layers with batch statistics compute the same as on one device only if these are over
groups of neighbouring examples, and every replica has whole groups without padding.

Axes: B examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.layers.layer import Layer
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.learner.padding import row_multiple
from lingo.learner.state import Learner


class Shares(NamedTuple):
    """The share of one process."""

    index: int  # of the process
    num_processes: int  # that share a batch
    num_replicas: int  # of each process

    def largest(self, size: int) -> int:
        """Returns the largest number of examples that a process has of a batch of `size`."""
        return -(-size // self.num_processes)

    def example_slice(self, size: int) -> slice:
        """Returns which examples of a batch of `size` this process has: none if there are few."""
        each = self.largest(size)
        return slice(min(self.index * each, size), min((self.index + 1) * each, size))

    def replica_size(self, largest: int, *, multiple_of: int = 1) -> int:
        """Returns how many examples each replica computes, padding included.

        `largest` is the number of examples of the process that has the most.
        """
        each = -(-largest // self.num_replicas)
        return -(-each // multiple_of) * multiple_of

    def split(
        self,
        batch: Mapping[str, np.ndarray],
        largest: int,
        *,
        axis: int = 0,
        multiple_of: int = 1,
        repeat: bool = False,
    ) -> dict[str, tuple[np.ndarray, ...]]:
        """Returns the padded batch of each replica: name -> arrays [..., `replica_size`, ...].

        `batch` is name -> [..., B of this process, ...] of any dtype; `axis` is that of B. Padding
        is copies of the last example, with `repeat`, else zeros, so that its weight is 0.
        """
        size = self.replica_size(largest, multiple_of=multiple_of)
        replicas = {}
        for name, array in batch.items():
            num_examples = array.shape[axis]
            missing = [(0, 0)] * array.ndim
            missing[axis] = (0, size * self.num_replicas - num_examples)
            mode = "edge" if repeat and num_examples else "constant"
            padded = np.pad(array, missing, mode=mode)
            replicas[name] = tuple(np.split(padded, self.num_replicas, axis))
        return replicas

    def join(self, rows: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
        """Returns the results [B, ...] of a batch without those of padding examples.

        `rows` are [all examples of all replicas, padding included, ...] of any dtype; `sizes` are
        the numbers of examples of each process without padding.
        """
        parts = np.split(rows, self.num_processes)
        return np.concatenate([part[:size] for part, size in zip(parts, sizes, strict=True)])


def check_statistics(learner: Learner, shares: Shares, size: int) -> None:
    """Raises ParamError if replicas would compute other statistics of a batch than one device."""
    num, parts = shares.num_processes * shares.num_replicas, row_multiple(learner)
    for layer in learner.task.tree():
        if (rows := layer.batch_requirements().examples_counted) is None:
            continue
        name = layer.path or type(layer).__name__
        if size % (num * parts):
            raise ParamError(
                f"runtime: {size} examples are not {num * parts} equal parts, for {num} replicas"
                f" and {parts} parts of what each has, and statistics of {name} would count the"
                f" padding: train_input.batch_size has to be a multiple of {num * parts}",
                "runtime",
            )
        if rows == 0 and num > 1:
            raise ParamError(
                f"runtime: {name} would take statistics of each replica's examples alone, and"
                f" compute something else than one device: {_groups(layer, size // num // parts)}"
                f"--set='runtime=Mesh(data={num})' keeps one group of all examples",
                "runtime",
            )


def _groups(layer: Layer, size: int) -> str:
    """Returns advice for grouped statistics: the flag of a BatchNorm; "" for other layers."""
    if not isinstance(layer, BatchNorm):
        return ""
    name = type(layer).__name__
    return f"--set={name}.statistics_over={size} makes groups of so many examples everywhere, "
