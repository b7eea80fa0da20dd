"""The table of a model's weights: one row per weight, even if a program stacks several weights.

On a mesh the table also has each weight's shard on a device, and total bytes per device. If a
pipeline stacks the layers of several stages, a device has only the weights of its own stages, and
the totals below the table count only these weights.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from lingo.config.regex import check_regex
from lingo.layers import path
from lingo.layers.layer import Layer
from lingo.learner.state import FLOAT_BYTES, Learner
from lingo.mesh.split import Split
from lingo.mesh.tiles import tiles
from lingo.optim.optimizer import Optimizer
from lingo.runtimes.layout import Layout, bytes_per_device

MANY = 128
"""In a `brief` table, more equal layers than this share rows; fewer have a row each."""


class Row(NamedTuple):
    """A weight, or the weights of equal layers that share a row in a compact table."""

    path: str  # path of the weight; if weights share the row, an index in it is a slice
    shape: tuple[int, ...]  # shape of one weight
    dtype: str  # dtype in which the weight is trained and stored
    axes: tuple[str | None, ...]  # logical axis of each dim, or None

    @property
    def parameters(self) -> int:
        """The number of elements of all weights that share the row."""
        return math.prod(self.shape) * math.prod(path.stack_shape(self.path))


class Columns(NamedTuple):
    """A table as columns of text, the left-aligned columns first."""

    words: dict[str, list[str]]  # name -> cells, left-aligned
    numbers: dict[str, list[str]]  # name -> cells, right-aligned; these columns follow the words


def rows(layer: Layer) -> list[Row]:
    """Returns the weights of a root layer, one row each.

    The rows are in the order of declaration, layer by layer, with `Repeat` as without.
    """
    return list(_leaves(_tree(layer), ""))


def compact(layer: Layer) -> list[Row]:
    """Returns a table in which the weights of equal layers share a row: `layers/[0:64]/ffn/w_in`.

    Which weights share a row does not depend on which weights the program stacks.
    """
    return list(_leaves(_fold_equal(_tree(layer)), ""))


def brief(layer: Layer) -> list[Row]:
    """Returns a table with a row per weight; weights of more than `MANY` equal layers share a row.

    So each of 48 layers has its own rows, and the 2,048 experts of a layer share rows.
    """
    return list(_leaves(_fold_equal(_tree(layer), more_than=MANY), ""))


def render(layer: Layer) -> str:
    """Returns the `brief` table of the weights of a root layer as text."""
    return text(brief(layer))


def find_frozen(learner: Learner) -> set[str]:
    """Returns the paths of the weights that the optimizer never changes."""
    optimizer = learner.optimizer
    if type(optimizer).trainable_layers is Optimizer.trainable_layers:  # which trains all
        return set()
    return {
        name
        for weight in learner.weights().values()
        for name, is_trained in zip(weight.names, optimizer.trainable_layers(weight), strict=True)
        if not is_trained
    }


def select(table: Iterable[Row], pattern: str) -> list[Row]:
    """Returns the rows whose path contains a match of a regular expression.

    Raises ParamError if the pattern is not a regular expression.
    """
    check_regex(pattern)
    return [row for row in table if re.search(pattern, row.path)]


def total_parameters(table: Iterable[Row]) -> int:
    """Returns the number of parameters of all weights in a table."""
    return sum(row.parameters for row in table)


def text(table: Iterable[Row], frozen: Collection[str] = ()) -> str:
    """Returns a table as text: aligned columns, with the total below.

    If `frozen` is not empty, a last column marks the weights whose paths it contains.
    """
    table = list(table)
    return align_columns(columns(table), frozen_marks(table, frozen))


def frozen_marks(table: Iterable[Row], frozen: Collection[str]) -> dict[str, list[str]]:
    """Returns a column that marks the rows of frozen weights: {"": cells}; {} if none is frozen."""
    return {"": [*(_mark(row, frozen) for row in table), ""]} if frozen else {}


def _mark(row: Row, frozen: Collection[str]) -> str:
    states = [name in frozen for name in path.names(row.path)]
    if not any(states):
        return ""
    return "frozen" if all(states) else "partly frozen"


def sums_text(table: Iterable[Row], depth: int) -> str:
    """Returns a table, as text, of each module's number of rows, parameters and share of the total.

    A module is the first `depth` names of a path; an index belongs to the name before it.
    """
    num_rows, parameters = Counter[str](), Counter[str]()
    for row in table:
        module = _module(row.path, depth)
        num_rows[module] += 1
        parameters[module] += row.parameters
    total = parameters.total()
    sizes = [*parameters.values(), total]
    return align_columns(
        Columns(
            {"module": [*parameters, "total"]},
            {
                "rows": [str(n) for n in (*num_rows.values(), num_rows.total())],
                "parameters": [f"{size:,}" for size in sizes],
                "share": [f"{100 * size / max(total, 1):.1f}%" for size in sizes],
            },
        )
    )


def _module(where: str, depth: int) -> str:
    """Returns the first `depth` names of a path with their indices, without the weight's name."""
    parts: list[str] = []
    for part in where.split("/")[:-1]:
        if parts and (part.isdigit() or path.index_range(part) is not None):
            parts[-1] += f"/{part}"
        else:
            parts.append(part)
    return "/".join(parts[:depth])


def columns(table: Iterable[Row]) -> Columns:
    """Returns a table as columns of text, with the total in their last line."""
    table = list(table)
    sizes = [row.parameters for row in table]
    return Columns(
        {
            "path": [*(row.path for row in table), "total"],
            "shape": [*(str(list(row.shape)) for row in table), ""],
            "dtype": [*(row.dtype for row in table), ""],
            "axes": [*(", ".join(axis or "-" for axis in row.axes) for row in table), ""],
        },
        {"parameters": [f"{size:,}" for size in (*sizes, sum(sizes))]},
    )


def align_columns(columns: Columns, marks: Mapping[str, list[str]] = MappingProxyType({})) -> str:
    """Returns columns as text, with their names above.

    `marks` has further left-aligned columns, which come last: name -> cells.
    """
    left = [_pad_column(k, cells, str.ljust) for k, cells in columns.words.items()]
    right = [_pad_column(k, cells, str.rjust) for k, cells in columns.numbers.items()]
    last = [_pad_column(k, cells, str.ljust) for k, cells in marks.items()]
    lines = zip(*left, *right, *last, strict=True)
    return "".join(f"{'  '.join(line).rstrip()}\n" for line in lines)


def as_json(table: Iterable[Row], frozen: Collection[str] = ()) -> dict[str, Any]:
    """Returns a table as JSON values: `total_parameters`, and `weights` with a field `frozen`."""
    table, names = list(table), (*Row._fields, "parameters", "frozen")
    values = [(*row, row.parameters, row.path in frozen) for row in table]
    weights = [dict(zip(names, row, strict=True)) for row in values]
    return {"total_parameters": total_parameters(table), "weights": weights}


def _pad_column(name: str, cells: list[str], pad: Callable[[str, int], str]) -> list[str]:
    width = max(map(len, (name, *cells)))
    return [pad(cell, width) for cell in (name, *cells)]


# ---- the weights as a tree: {part of a path: subtree}, with a Row at each leaf -------------------
# If a program stacks layers, their subtree is one object under each of their indices, so that
# thousands of experts are walked once.


def _tree(layer: Layer) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for spec in layer.weights().values():
        node = root
        *parts, last = spec.path.split("/")
        for part in parts:
            node = node.setdefault(part, {})
        # weights are float32, whatever dtype the layer computes in
        node[last] = Row("", spec.shape, "float32", spec.axes)
    return _expand_slices(root)


def _expand_slices(node: dict[str, Any] | Row) -> Any:
    """Returns a tree with one child for each index in place of a child for a slice of indices."""
    if isinstance(node, Row):
        return node
    expanded: dict[str, Any] = {}
    for part, child in node.items():
        indices, child = path.index_range(part), _expand_slices(child)
        expanded |= dict.fromkeys([part] if indices is None else map(str, indices), child)
    return expanded


def _leaves(node: dict[str, Any] | Row, where: str) -> Iterator[Row]:
    if isinstance(node, Row):
        yield Row(where, node.shape, node.dtype, node.axes)
        return
    uses = Counter(map(id, node.values()))
    below: dict[int, list[Row]] = {}  # rows of each shared subtree, with paths relative to it
    for part in sorted(node, key=_position):
        here, child = path.join(where, part), node[part]
        if isinstance(child, Row) or uses[id(child)] == 1:
            yield from _leaves(child, here)
            continue
        if id(child) not in below:
            below[id(child)] = list(_leaves(child, ""))
        for row in below[id(child)]:
            yield Row(f"{here}/{row.path}", row.shape, row.dtype, row.axes)


def _position(part: str) -> int:
    """Returns a sort key: the first index of a layer; 0 for a name, so that names keep order."""
    if part.isdigit():
        return int(part)
    indices = path.index_range(part)
    return indices.start if indices is not None else 0


def _fold_equal(node: dict[str, Any] | Row, *, more_than: int = 1) -> Any:
    """Returns a tree that merges equal subtrees at regularly spaced indices into one.

    At most `more_than` equal subtrees stay separate.
    """
    if isinstance(node, Row):
        return node
    distinct = {id(child): child for child in node.values()}
    folded_once = {i: _fold_equal(child, more_than=more_than) for i, child in distinct.items()}
    children = {part: folded_once[id(child)] for part, child in node.items()}
    folded = {part: child for part, child in children.items() if not part.isdigit()}
    groups: list[tuple[Any, list[int]]] = []
    for index in sorted(int(part) for part in children if part.isdigit()):
        child = children[str(index)]
        group = next((indices for other, indices in groups if other == child), None)
        if group is None:
            groups.append((child, [index]))
        else:
            group.append(index)
    for child, indices in groups:
        for run in _progressions(indices):
            runs = [run] if len(run) > more_than else [[index] for index in run]
            folded |= {_part(indices): child for indices in runs}
    return folded


def _progressions(indices: list[int]) -> Iterator[list[int]]:
    """Splits sorted indices into arithmetic progressions."""
    run: list[int] = []
    for index in indices:
        if len(run) > 1 and index - run[-1] != run[1] - run[0]:
            yield run
            run = []
        run.append(index)
    yield run


def _part(run: list[int]) -> str:
    if len(run) == 1:
        return str(run[0])
    return path.slice_part(run[0], run[-1] + 1, run[1] - run[0])


# ---- on a mesh -----------------------------------------------------------------------------------


class Shard(NamedTuple):
    """The shard of a weight that a device holds between steps."""

    tensor: str  # path of the program's tensor that contains the weight, maybe with stacked layers
    split: Split  # how the weight is split
    shape: tuple[int, ...]
    num_bytes: int
    tiles: str  # which device holds which shard, in XLA's notation


def shards(learner: Learner, layout: Layout) -> dict[str, Shard]:
    """Returns the shard of each weight that a device holds: path of a single weight -> shard."""
    by_path: dict[str, Shard] = {}
    for where, spec in learner.task.weights().items():
        rest = layout.rest[where]
        split = Split(rest.axes[spec.num_stacked :], rest.row_axes)
        size = FLOAT_BYTES * split.part_size(spec.shape, layout.mesh)
        shape, text = split.part_shape(spec.shape, layout.mesh), str(tiles(split, layout.mesh))
        by_path |= dict.fromkeys(path.names(where), Shard(where, split, shape, size, text))
    return by_path


def split_text(learner: Learner, layout: Layout, table: Sequence[Row]) -> str:
    """Returns a table, as text, with each weight's shard, and the total bytes per device below.

    `table` is the `brief` table of the task, or some rows of it in any order. The totals are always
    of all weights.
    """
    words, numbers = columns(table)
    known = shards(learner, layout)
    row_shards = [known[path.names(row.path)[0]] for row in table]
    words["split"] = [*(str(shard.split) for shard in row_shards), ""]
    words["part"] = [*(str(list(shard.shape)) for shard in row_shards), ""]
    sizes = [
        shard.num_bytes * _num_held(row.path, shard.tensor, layout)
        for row, shard in zip(table, row_shards, strict=True)
    ]
    each = {"bytes per device": [*(f"{size:,}" for size in sizes), ""]}
    marks = frozen_marks(table, find_frozen(learner))
    return f"{align_columns(Columns(words, each | numbers), marks)}\n{_totals(learner, layout)}"


def split_json(learner: Learner, layout: Layout, table: Iterable[Row]) -> dict[str, Any]:
    """Returns the values of `as_json` for a table, with each weight's shard and its bytes.

    `table` is `rows` of the task, or some rows of it in any order. The total bytes per device are
    always of all weights.
    """
    values = as_json(table, find_frozen(learner))
    known = shards(learner, layout)
    for row in values["weights"]:
        shard = known[row["path"]]
        row |= {
            "split": shard.split.axes,
            "part": shard.shape,
            "bytes_per_device": shard.num_bytes,
            "tiles": shard.tiles,
        }
    totals = bytes_per_device(learner, layout)
    return values | {
        "mesh": dict(layout.mesh.sizes),
        "num_devices": layout.mesh.num_devices,
        "bytes_per_device": {kind: size.per_device for kind, size in totals.items()},
        "padding_bytes": {kind: size.padding for kind, size in totals.items()},
    }


def _num_held(row: str, tensor: str, layout: Layout) -> int:
    """Returns how many of the weights in a row have a shard on the same device.

    Args:
        row: path of the row.
        tensor: path of the program's tensor that contains the weights.
        layout: how devices split the tensors.
    """
    num, cuts = 1, iter(layout.rest[tensor].axes)
    for part, stacked in zip(row.split("/"), tensor.split("/"), strict=True):
        cut = next(cuts) if path.index_range(stacked) is not None else ()
        if (indices := path.index_range(part)) is not None:
            num *= -(-len(indices) // layout.mesh.size(cut))
    return num


def _totals(learner: Learner, layout: Layout) -> str:
    totals = bytes_per_device(learner, layout)
    mesh = layout.mesh
    sizes = [size.per_device for size in totals.values()]
    padding = [size.padding for size in totals.values()]
    return align_columns(
        Columns(
            {f"on {mesh.num_devices} devices ({mesh})": [*totals, "total"]},
            {
                "bytes per device": [f"{number:,}" for number in (*sizes, sum(sizes))],
                "padding in all": [f"{number:,}" for number in (*padding, sum(padding))],
            },
        )
    )
