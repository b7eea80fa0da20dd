"""Sparse tables: a step reads, updates and writes only the rows that its batch looks up.

    ids     gradients        each id once       update              write
    7       a                2    b             reads rows 2, 7     rows 2, 7
    2       b                7    a + c
    7       c                2    0             (a repeat, so that shapes do not depend on ids)

The table's gradient is not a tensor of its size. Lookups are recorded, and the gradient of each
looked-up row is added to the other gradients of its id. So norms, clipping and the optimizer's
arithmetic are the same as with a dense gradient, row by row.

Axes: V rows of a table, D its width, N lookups of a step in one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.config.params import ParamError


class RecordedReads:
    """The lookups of a step in sparse tables, as `Call.table_reads`."""

    def __init__(self, tape: Any) -> None:
        """`tape` is the GradientTape that records the step, in the present graph."""
        self._tape, self._graph = tape, _current_graph()
        self._ids: dict[str, list[tf.Tensor]] = {}
        self.rows: dict[str, list[tf.Tensor]] = {}  # path -> the rows of each lookup, [..., D]
        self.is_complete = False  # whether the loss is computed: a later read is a recomputation

    def read(self, where: str, table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows for ids, and records them; see `lingo.layers.context.TableReads`."""
        if self.is_complete or _current_graph() is not self._graph:
            raise ParamError(
                f"{where} is a sparse table, and is looked up inside a loop over layers or"
                " micro-batches, a mapped layer, or a layer that is recomputed: look it up outside,"
                " or declare it without sparse (EmbeddingTables.sparse_from=None)"
            )
        rows = tf.gather(tf.stop_gradient(table), ids)
        self._tape.watch(rows)
        self._ids.setdefault(where, []).append(ids)
        self.rows.setdefault(where, []).append(rows)
        return rows

    def gradients(
        self, gradients: Mapping[str, list[Any]], whole: Mapping[str, Any]
    ) -> dict[str, RowGradients]:
        """Returns path -> gradients of a table's lookups, from the gradients of `rows`.

        `gradients` has, for each path, a tensor [..., D] per lookup, or None if the loss does not
        depend on it. `whole` are the gradients of whole weights, by path. Raises ParamError if a
        looked-up table has one, since the loss then reads the table without `look_up`, too.
        """
        found = {}
        for where, values in gradients.items():
            if whole.get(where) is not None:
                raise ParamError(
                    f"{where} is a sparse table, and the loss also reads all of it: read it by"
                    " look_up alone, or declare it without sparse"
                )
            pairs = list(zip(self._ids[where], self.rows[where], values, strict=True))
            if all(g is None for g in values):
                continue  # the loss does not depend on the table
            width = pairs[0][1].shape[-1]
            values = [tf.zeros_like(rows) if g is None else g for _, rows, g in pairs]
            found[where] = RowGradients(
                tf.concat([tf.reshape(ids, [-1]) for ids, _, _ in pairs], axis=0),
                tf.concat([tf.reshape(g, [-1, width]) for g in values], axis=0),
            )
        return found


class RowGradients(NamedTuple):
    """The gradients of the rows of a table that examples looked up; ids may repeat."""

    ids: tf.Tensor  # int32 [N]
    values: tf.Tensor  # float32 [N, D]

    def divide(self, scale: tf.Tensor) -> RowGradients:
        """Returns the gradients divided by a float32 scalar."""
        return self._replace(values=self.values / scale)


class UniqueRows(NamedTuple):
    """The rows of a table that a step updates: K different ones, then repeats of the first."""

    ids: tf.Tensor  # int32 [N]
    source: tf.Tensor  # int32 [N]: i for i < K, 0 after that

    def read(self, table: tf.Tensor) -> tf.Tensor:
        """Returns these rows of a table or slot, float32 [V, D]: [N, D]."""
        return tf.gather(table, self.ids)

    def write(self, table: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Returns the table, float32 [V, D], with `rows`, [N, D], in place of its own."""
        # several writes of one row have the same values, so their order does not matter
        rows = tf.gather(rows, self.source)
        return tf.tensor_scatter_nd_update(table, self.ids[:, None], rows)


def sum_repeats(gradients: RowGradients) -> tuple[UniqueRows, tf.Tensor]:
    """Returns the different rows, and the sum of each row's gradients, float32 [N, D].

    The sums of repeats are zeros, so that each gradient is in a norm once.
    """
    num = tf.shape(gradients.ids)[0]
    order = tf.argsort(gradients.ids, stable=True)
    ids = tf.gather(gradients.ids, order)
    is_new = tf.concat([[1], tf.cast(ids[1:] != ids[:-1], tf.int32)], axis=0)
    group = tf.cumsum(is_new) - 1
    sums = tf.math.unsorted_segment_sum(tf.gather(gradients.values, order), group, num)
    index = tf.range(num)
    source = tf.where(index <= group[-1], index, 0)
    unique = tf.math.unsorted_segment_max(ids, group, num)
    return UniqueRows(tf.gather(unique, source), source), tf.ensure_shape(
        sums, gradients.values.shape
    )


def unique_rows(
    gradients: Mapping[str, RowGradients],
) -> tuple[dict[str, UniqueRows], dict[str, tf.Tensor]]:
    """Returns `sum_repeats` of each table, by path: the rows, and the sums of their gradients."""
    pairs = {where: sum_repeats(own) for where, own in gradients.items()}
    return {k: rows for k, (rows, _) in pairs.items()}, {k: sums for k, (_, sums) in pairs.items()}


def _current_graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
