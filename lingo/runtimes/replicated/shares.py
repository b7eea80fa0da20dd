"""How replicas share a batch: all get equally many examples; padding examples have weight 0.

Examples stay in order, by process and then by replica. A layer with batch statistics computes the
same as on one device only if its statistics are over groups of neighbouring examples without
padding, and either every replica has whole groups, or every group has the examples of whole
replicas.

Axes: B examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.layers import path
from lingo.layers.layer import Layer
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.learner.padding import pipelines, row_multiple
from lingo.learner.phase import are_always_due
from lingo.learner.state import Learner


class Shares(NamedTuple):
    """One process's share of a batch, and how its replicas split this share."""

    index: int  # of the process
    num_processes: int  # that share a batch
    num_replicas: int  # of each process

    def largest(self, size: int) -> int:
        """Returns the largest number of examples that a process has, for a batch of `size`."""
        return -(-size // self.num_processes)

    def example_slice(self, size: int) -> slice:
        """Returns the slice of a batch of `size` that this process has; empty for a small batch."""
        each = self.largest(size)
        return slice(min(self.index * each, size), min((self.index + 1) * each, size))

    def replica_size(self, largest: int, *, multiple_of: int = 1) -> int:
        """Returns how many examples each replica computes, padding included.

        `largest` is the largest number of examples that a process has.
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

        `batch` is name -> [..., B of this process, ...] of any dtype; `axis` is the axis B.
        With `repeat`, padding repeats the last example; otherwise it is zeros, so its weight is 0.
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
        """Returns a batch's results [B, ...] without padding.

        `rows` are [all examples of all replicas, padding included, ...] of any dtype; `sizes` are
        each process's number of examples without padding.
        """
        parts = np.split(rows, self.num_processes)
        return np.concatenate([part[:size] for part, size in zip(parts, sizes, strict=True)])


def check_statistics(learner: Learner, shares: Shares, size: int, *, xla: bool = False) -> None:
    """Raises ParamError if batch statistics on replicas would differ from one device's.

    `size` is the number of examples of the batch; `xla` is whether XLA compiles the computations
    within a replica.
    """
    num, parts = shares.num_processes * shares.num_replicas, row_multiple(learner)
    for layer in learner.task.tree():
        if (rows := layer.batch_requirements().examples_counted) is None:
            continue
        name = layer.path or type(layer).__name__
        if size % (num * parts):
            raise ParamError(
                f"runtime: {size} examples do not divide into {num * parts} equal parts, for {num}"
                f" replicas with {parts} each, and statistics of {name} would count the padding:"
                f" train_input.batch_size has to be a multiple of {num * parts}",
                "runtime",
            )
        if rows == 0 and num > 1:
            raise ParamError(
                f"runtime: {name} would take statistics of each replica's examples alone, and"
                f" compute something else than one device: {_groups(layer, size // num // parts)}"
                f"--set='runtime=Mesh(data={num})' keeps one group of all examples",
                "runtime",
            )
        if rows and num > 1:
            _check_groups(learner, layer, rows, num_replicas=num, each=size // num, xla=xla)


def _groups(layer: Layer, size: int) -> str:
    """Returns advice on the flag that sets a BatchNorm's groups; "" for other layers."""
    if not isinstance(layer, BatchNorm):
        return ""
    name = type(layer).__name__
    return f"--set={name}.statistics_over={size} makes groups of this size everywhere, "


def _check_groups(
    learner: Learner, layer: Layer, size: int, *, num_replicas: int, each: int, xla: bool
) -> None:
    """Raises ParamError if replicas that have `each` examples cannot compute groups of `size`."""
    if each % size == 0:
        return
    if size % each or num_replicas % (size // each):
        why = "a replica has to have whole groups, or each group the same number of whole replicas"
    elif learner.accumulation_steps > 1:
        why = "replicas exchange nothing inside the loop of accumulation_steps"
    elif not are_always_due(learner.task.phases()):
        why = "replicas exchange nothing inside a phase that is not due at every step"
    elif xla:
        why = "replicas exchange nothing inside a program that runtime.xla compiles"
    elif path.stack_shape(layer.path) or any(layer in p.tree() for p in pipelines(learner.task)):
        why = "replicas exchange nothing inside the loop of a stack, or inside a pipeline"
    else:
        return
    raise ParamError(
        f"runtime: {layer.path or type(layer).__name__} takes statistics of groups of {size}"
        f" examples, and each of {num_replicas} replicas has {each}: {why};"
        f" --set='runtime=Mesh(data={num_replicas})' computes any groups",
        "runtime",
    )
