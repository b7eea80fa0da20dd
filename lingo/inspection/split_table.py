"""The table of a model's weights on a mesh: the shard of each on a device, and total bytes.

Every weight has the row that it has without a mesh. If a program stacks the layers of several
stages, a device has only the weights of its stages; the totals below the table count these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from lingo.inspection import weight_table
from lingo.inspection.weight_table import Columns, Row
from lingo.layers import path
from lingo.learner.state import FLOAT_BYTES, Learner
from lingo.mesh.split import Split
from lingo.mesh.tiles import tiles
from lingo.runtimes.layout import Layout, bytes_per_device


class Shard(NamedTuple):
    """The shard of a weight that a device holds between steps."""

    tensor: str  # program path of the tensor that contains the weight
    split: Split  # how the weight is split
    shape: tuple[int, ...]
    num_bytes: int
    tiles: str  # which device holds which shard, in XLA's notation


def shards(learner: Learner, layout: Layout) -> dict[str, Shard]:
    """Returns the shard of each weight on a device, by the weight's path."""
    found: dict[str, Shard] = {}
    for where, spec in learner.task.weights().items():
        rest = layout.rest[where]
        split = Split(rest.axes[spec.num_stacked :], rest.row_axes)
        size = FLOAT_BYTES * split.part_size(spec.shape, layout.mesh)
        shape, text = split.part_shape(spec.shape, layout.mesh), str(tiles(split, layout.mesh))
        found |= dict.fromkeys(path.names(where), Shard(where, split, shape, size, text))
    return found


def render(learner: Learner, layout: Layout, table: Iterable[Row] | None = None) -> str:
    """Returns a table as text, and below it the bytes per device of all weights.

    The table is `weight_table.brief` of the task, or some of its rows in any order.
    """
    table = weight_table.brief(learner.task) if table is None else list(table)
    words, numbers = weight_table.columns(table)
    known = shards(learner, layout)
    row_shards = [known[path.names(row.path)[0]] for row in table]
    words["split"] = [*(str(shard.split) for shard in row_shards), ""]
    words["part"] = [*(str(list(shard.shape)) for shard in row_shards), ""]
    sizes = [
        shard.num_bytes * _num_held(row.path, shard.tensor, layout)
        for row, shard in zip(table, row_shards, strict=True)
    ]
    each = {"bytes per device": [*(f"{size:,}" for size in sizes), ""]}
    marks = weight_table.frozen_marks(table, weight_table.find_frozen(learner))
    return (
        f"{weight_table.align_columns(Columns(words, each | numbers), marks)}\n"
        f"{_totals(learner, layout)}"
    )


def as_json(learner: Learner, layout: Layout, rows: Iterable[Row] | None = None) -> dict[str, Any]:
    """Returns a table as JSON values: those of `weight_table.as_json`, with shards and bytes.

    The table is `weight_table.rows` of the task, or some of its rows in any order; the bytes per
    device are those of all.
    """
    rows = weight_table.rows(learner.task) if rows is None else rows
    table = weight_table.as_json(rows, weight_table.find_frozen(learner))
    known = shards(learner, layout)
    for row in table["weights"]:
        shard = known[row["path"]]
        row |= {
            "split": shard.split.axes,
            "part": shard.shape,
            "bytes_per_device": shard.num_bytes,
            "tiles": shard.tiles,
        }
    found = bytes_per_device(learner, layout)
    return table | {
        "mesh": dict(layout.mesh.sizes),
        "num_devices": layout.mesh.num_devices,
        "bytes_per_device": {kind: size.per_device for kind, size in found.items()},
        "padding_bytes": {kind: size.padding for kind, size in found.items()},
    }


def _num_held(row: str, tensor: str, layout: Layout) -> int:
    """Returns how many of a row's weights have a shard on one device."""
    num, cuts = 1, iter(layout.rest[tensor].axes)
    for part, stacked in zip(row.split("/"), tensor.split("/"), strict=True):
        cut = next(cuts) if path.index_range(stacked) is not None else ()
        if (indices := path.index_range(part)) is not None:
            num *= -(-len(indices) // layout.mesh.size(cut))
    return num


def _totals(learner: Learner, layout: Layout) -> str:
    found = bytes_per_device(learner, layout)
    mesh = layout.mesh
    sizes = [size.per_device for size in found.values()]
    padding = [size.padding for size in found.values()]
    return weight_table.align_columns(
        Columns(
            {f"on {mesh.num_devices} devices ({mesh})": [*found, "total"]},
            {
                "bytes per device": [f"{number:,}" for number in (*sizes, sum(sizes))],
                "padding in all": [f"{number:,}" for number in (*padding, sum(padding))],
            },
        )
    )
