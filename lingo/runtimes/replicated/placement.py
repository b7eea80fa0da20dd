"""The placement of one replica: its sums over the batch are added up over all replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lingo.config.lazy import tf
from lingo.learner.step import Placement

_T = TypeVar("_T")


class ReplicaPlacement(Placement):
    """The placement of one replica among several."""

    def __init__(self, *, xla: bool, tpu: bool) -> None:
        """Places nothing yet.

        Args:
            xla: whether to compile the computation between two sums over replicas.
            tpu: whether the replicas are on a TPU, which compiles everything.
        """
        super().__init__(compiled=xla or tpu)
        self._xla = xla

    def total(self, sums: Any) -> Any:
        """Adds up over replicas, with one all-reduce for all tensors of a dtype.

        Args:
            sums: a structure of tensors, any shapes and numeric dtypes.

        Returns:
            The same structure, shapes and dtypes.
        """
        flat = [tf.convert_to_tensor(value) for value in tf.nest.flatten(sums)]
        replica = tf.distribute.get_replica_context()
        for dtype in dict.fromkeys(value.dtype for value in flat):
            places = [i for i, value in enumerate(flat) if value.dtype == dtype]
            added = replica.all_reduce("SUM", [flat[i] for i in places])
            for i, value in zip(places, added, strict=True):
                flat[i] = value
        return tf.nest.pack_sequence_as(sums, flat)

    def compute(self, function: Callable[[], _T]) -> _T:
        if not self._xla:
            return function()
        return tf.function(function, autograph=False, jit_compile=True)()
