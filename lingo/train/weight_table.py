"""The table of a model's weights: a row each, under its own name, however programs stack them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from lingo.layers import path
from lingo.layers.layer import Layer


class Row(NamedTuple):
    """A weight, or in a compact table the weights of alike layers.

    Attributes:
        path: name of the weight; an index may be a slice in a compact table.
        shape: of one weight.
        dtype: of one element, as trained and stored.
        axes: logical axis of each dimension, None where it has none.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...]

    @property
    def parameters(self) -> int:
        """Number of elements, of all the weights that the row stands for."""
        return math.prod(path.stack_shape(self.path) + self.shape)


def rows(layer: Layer) -> list[Row]:
    """Returns the weights of a root layer, one row each.

    The order is that of declaration, layer by layer: the same with and without `Repeat`.
    """
    return list(_leaves(_tree(layer), ""))


def compact(layer: Layer) -> list[Row]:
    """Returns one row for the weights of alike layers: `layers/[0:64]/ffn/w_in`.

    It depends on the weights alone, not on which of them the program stacks.
    """
    return list(_leaves(_folded(_tree(layer)), ""))


def render(layer: Layer) -> str:
    """Returns the table of all weights of a root layer as text."""
    return text(rows(layer))


def total_parameters(table: Iterable[Row]) -> int:
    """Returns the number of trained numbers in a table."""
    return sum(row.parameters for row in table)


def text(table: Iterable[Row]) -> str:
    """Returns a table for people: aligned columns, the total below."""
    table = list(table)
    lines = [("path", "shape", "dtype", "axes", "parameters")]
    for row in table:
        axes = ", ".join(axis or "-" for axis in row.axes)
        lines.append((row.path, str(list(row.shape)), row.dtype, axes, f"{row.parameters:,}"))
    lines.append(("total", "", "", "", f"{total_parameters(table):,}"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(f"{_aligned(line, widths)}\n" for line in lines)


def as_json(table: Iterable[Row]) -> dict[str, Any]:
    """Returns a table as JSON values: `total_parameters` and `weights`."""
    table = list(table)
    weights = [{**row._asdict(), "parameters": row.parameters} for row in table]
    return {"total_parameters": total_parameters(table), "weights": weights}


def _aligned(line: tuple[str, ...], widths: list[int]) -> str:
    *left, number = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
    return "  ".join([*left, number.strip().rjust(widths[-1])])


# ---- the weights as a tree: path part -> subtree, a Row at the leaves ----------------------------


def _tree(layer: Layer) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for spec in layer.weights().values():
        for name in path.names(spec.path):
            node = root
            *parts, last = name.split("/")
            for part in parts:
                node = node.setdefault(part, {})
            node[last] = Row("", spec.shape, "float32", spec.axes)  # whatever the layer computes in
    return root


def _leaves(node: dict[str, Any] | Row, where: str) -> Iterator[Row]:
    if isinstance(node, Row):
        yield node._replace(path=where)
        return
    for part in sorted(node, key=_position):
        yield from _leaves(node[part], path.join(where, part))


def _position(part: str) -> int:
    """Sorts layers by their first index; other parts stay in the order of declaration."""
    indices = path.index_range(part)
    return indices.start if indices is not None else int(part) if part.isdigit() else 0


def _folded(node: dict[str, Any] | Row) -> Any:
    """Returns a tree in which alike subtrees with regular indices have become one."""
    if isinstance(node, Row):
        return node
    folded = {part: _folded(child) for part, child in node.items()}
    kept = {part: child for part, child in folded.items() if not part.isdigit()}
    alike: list[tuple[Any, list[int]]] = []
    for index in sorted(int(part) for part in folded if part.isdigit()):
        child = folded[str(index)]
        group = next((indices for other, indices in alike if other == child), None)
        if group is None:
            alike.append((child, [index]))
        else:
            group.append(index)
    for child, indices in alike:
        kept |= {_part(run): child for run in _progressions(indices)}
    return kept


def _progressions(indices: list[int]) -> Iterator[list[int]]:
    """Splits rising indices into runs with one distance each."""
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
