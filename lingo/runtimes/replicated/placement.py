"""The tensors of a replica's step: it updates every weight as a whole, or a chunk of each weight.

With a sharded update (Xu et al. 2020, arXiv 2004.13336) a replica keeps slots for its chunk alone:

    gradients = total(gradients of each replica's part of the batch)   # then each takes its chunk
    chunks, slots = update(chunks of weights and gradients, slots)     # norms are over all replicas
    weights = all chunks, gathered: one exchange for all weights

If the layout keeps weights in parts, the chunks remain, and the next step gathers a copy of them,
rounded to bfloat16. TensorFlow's all-reduce gives every replica the whole sum; its reduce-scatter,
CollectiveReduceScatterV2, hangs on CPUs until it times out (TensorFlow 2.21).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from lingo.config.lazy import tf
from lingo.learner.placement import Placement
from lingo.learner.state import Slots
from lingo.mesh.weight_rows import WeightRows
from lingo.optim.optimizer import Weight
from lingo.optim.row_columns import RowColumns, flatten, unflatten
from lingo.runtimes.layout import Layout

_T = TypeVar("_T")


class ReplicaPlacement(Placement):
    """The placement of one replica: its sums over the batch are added up over all replicas."""

    def __init__(self, *, xla: bool, tpu: bool) -> None:
        """`xla`: compile the computations between sums; a TPU compiles everything itself."""
        super().__init__(compiled=xla or tpu)
        self._xla = xla

    def total(self, sums: Any) -> Any:
        """Adds up tensors of any shape over replicas: one all-reduce for all of a dtype."""
        flat = [tf.convert_to_tensor(value) for value in tf.nest.flatten(sums)]
        replica = tf.distribute.get_replica_context()
        for dtype in dict.fromkeys(value.dtype for value in flat):
            indices = [i for i, value in enumerate(flat) if value.dtype == dtype]
            totals = replica.all_reduce("SUM", [flat[i] for i in indices])
            for i, value in zip(indices, totals, strict=True):
                flat[i] = value
        return tf.nest.pack_sequence_as(sums, flat)

    def join_examples(self, values: Any) -> Any:
        replica = tf.distribute.get_replica_context()
        own, count = replica.replica_id_in_sync_group, replica.num_replicas_in_sync

        def pad(x: tf.Tensor) -> tf.Tensor:
            # a MirroredStrategy refuses to add up several int32 tensors at once
            x = tf.cast(x, tf.int64) if x.dtype == tf.int32 else x
            return tf.scatter_nd([[own]], x[None], [count, *x.shape])

        def merge(joined: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
            return tf.cast(tf.reshape(joined, [-1, *x.shape[1:]]), x.dtype)

        joined = self.total(tf.nest.map_structure(pad, values))
        return tf.nest.map_structure(merge, joined, values)

    def call_fields(self) -> dict[str, Any]:
        return super().call_fields() | {"replicas": self}

    def gather_neighbours(self, x: tf.Tensor, num: int) -> tf.Tensor:
        """Returns the `x` of neighbouring replicas (see `Replicas`), by one all-reduce each way.

        Each replica adds its own `x` to zeros, since an all-gather would first exchange sizes.
        """
        replica = tf.distribute.get_replica_context()
        own, count = replica.replica_id_in_sync_group, replica.num_replicas_in_sync
        padded = tf.scatter_nd([[own]], x[None], [count, *x.shape])
        every = replica.all_reduce("SUM", padded)
        return tf.reshape(every, [count // num, num, *x.shape])[own // num]

    def compute(self, function: Callable[[], _T]) -> _T:
        if not self._xla:
            return function()
        return tf.function(function, autograph=False, jit_compile=True)()


class ShardedUpdate(ReplicaPlacement):
    """The placement of a replica that updates its chunk of each weight's rows."""

    def __init__(self, layout: Layout, *, tpu: bool) -> None:
        # XLA cannot compile an update that adds up over replicas; a TPU compiles the whole step.
        super().__init__(xla=False, tpu=tpu)
        self._layout = layout
        self.keeps_parts = layout.rest != layout.read
        self.gathers_weights = not self.keeps_parts

    def weights_for_layers(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        return self._gather(weights, _gather_bfloat16) if self.keeps_parts else dict(weights)

    def update_weight(self, weight: Weight) -> Weight:
        if (rows := self._layout.rows[weight.path]) is None:
            return weight
        start = _own_index() * rows.chunk_size
        return weight._replace(row_columns=RowColumns(rows, rows.chunk_size, start, self.total))

    def shard_for_update(self, values: Mapping[str, Any]) -> dict[str, Any]:
        rows = self._layout.rows
        return {
            where: value if (own := rows[where]) is None else _own_chunk(value, own)
            for where, value in values.items()
        }

    def gather_weights(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return self._gather(values, _gather)

    def _gather(
        self, values: Mapping[str, Any], gather: Callable[[tf.Tensor], tf.Tensor]
    ) -> dict[str, Any]:
        rows = self._layout.rows
        gathered = _join_chunks(values.values(), [rows[k] for k in values], gather)
        return dict(zip(values, gathered, strict=True))

    def slots_for_update(self, slots: Slots) -> Slots:
        factors = list(self._factors(slots))
        chunks = [slots[where][name] for where, name, _ in factors]
        gathered = _join_chunks(chunks, [rows for *_, rows in factors], self._sum_of_own)
        return self._replace_factors(slots, gathered)

    def slots_for_storage(self, slots: Slots) -> Slots:
        own = [_own_chunk(slots[where][name], rows) for where, name, rows in self._factors(slots)]
        return self._replace_factors(slots, own)

    def _sum_of_own(self, own: tf.Tensor) -> tf.Tensor:
        """Gathers like `_gather`, but by a sum: for the few numbers exchanged within an update."""
        num = tf.distribute.get_replica_context().num_replicas_in_sync
        return self.total(tf.scatter_nd([[_own_index()]], own[None], [num, *own.shape]))

    def total_of_parts(self, sums: Any) -> Any:
        return self.total(sums)

    def _factors(self, slots: Slots) -> Iterator[tuple[str, str, WeightRows]]:
        """Yields (path, slot name, rows) of each slot in rows that lacks axes of its weight."""
        for where in slots:
            for name, rows in self._layout.factor_rows[where].items():
                if rows is not None:
                    yield where, name, rows

    def _replace_factors(self, slots: Slots, values: Sequence[Any]) -> Slots:
        replaced = {where: dict(own) for where, own in slots.items()}
        for (where, name, _), value in zip(self._factors(slots), values, strict=True):
            replaced[where][name] = value
        return replaced


def _own_index() -> Any:
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def _own_chunk(value: tf.Tensor, rows: WeightRows) -> tf.Tensor:
    """Returns this replica's chunk, [*stacked axes, 1, chunk], of weights [*stacked axes, ...]."""
    every = flatten(value, rows)
    chunks = tf.reshape(every, [*every.shape[:-1], rows.num_chunks, rows.chunk_size])
    return tf.gather(chunks, _own_index(), axis=-2)


def _gather(own: tf.Tensor) -> tf.Tensor:
    """Gathers the vectors [E] of all replicas; returns [replicas, E]."""
    return tf.distribute.get_replica_context().all_gather(own[None], axis=0)


def _gather_bfloat16(own: tf.Tensor) -> tf.Tensor:
    """Gathers like `_gather`, but rounded to bfloat16, which halves the exchanged bytes."""
    # `all_gather` takes neither bfloat16 nor 16-bit integers, so the bits travel as float16
    bits = tf.bitcast(tf.cast(own, tf.bfloat16), tf.float16)
    return tf.cast(tf.bitcast(_gather(bits), tf.bfloat16), tf.float32)


def _join_chunks(
    chunks: Iterable[tf.Tensor],
    rows: Sequence[WeightRows | None],
    gather: Callable[[tf.Tensor], tf.Tensor],
) -> list[tf.Tensor]:
    """Returns float32 weights [*stacked axes, ...] from chunks; `gather` exchanges all at once."""
    chunks = list(chunks)
    if not chunks:
        return []
    sizes = [chunk.shape.num_elements() for chunk in chunks]
    every = gather(tf.concat([tf.reshape(chunk, [-1]) for chunk in chunks], axis=0))
    weights = []
    for chunk, part, own in zip(chunks, tf.split(every, sizes, axis=1), rows, strict=True):
        if own is None:
            raise ValueError("replicas update every weight in rows")
        by_replica, rank = tf.reshape(part, [own.num_chunks, *chunk.shape]), len(chunk.shape)
        in_order = tf.transpose(by_replica, [*range(1, rank), 0, rank])
        weights.append(unflatten(tf.reshape(in_order, [*chunk.shape[:-1], own.row_size]), own))
    return weights
