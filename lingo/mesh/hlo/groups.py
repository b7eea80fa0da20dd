"""The groups of devices of a collective, and the mesh axes that they lie along.

XLA has several notations for the same groups:

    {{0,1},{2,3}}                         a list
    [4,2]<=[2,4]T(1,0)                    0..7 as [2, 4], transposed, as [4, 2]: a row is a group
    mesh['a'=2,'b'=4] {'a'}               groups along an axis of a mesh
    mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b':(2)2}      in another order, part of an axis
    {}                                    one group of all devices
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from lingo.mesh.split import Axes
from lingo.mesh.topology import Topology

Groups = list[list[int]]
"""Device numbers of each group."""

_LIST = r"\{(?:\{[\d,]*\},?)*\}"
_IOTA = r"\[[\d,]+\](?:<=\[[\d,]+\])?(?:T\([\d,]+\))?"
_MESH = rf"mesh\[[^\]]*\](?:, device_ids=\((?:{_IOTA}|[\d,]+)\))? \{{[^}}]*\}}"
_GROUPS = re.compile(rf"\breplica_groups=({_LIST}|{_IOTA}|{_MESH})")
_PAIRS = re.compile(rf"\bsource_target_pairs=({_LIST})")
_SUB_AXIS = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")


def groups(attributes: str, num_devices: int) -> Groups:
    """Reads the groups from the attributes of a collective; by default one of all devices."""
    found = _GROUPS.search(attributes)
    everyone = [list(range(num_devices))]
    if found is None:
        return everyone
    text = found[1]
    if text.startswith("mesh"):
        return _groups_along(text)
    if text.startswith("["):
        return _iota(text).tolist()
    return _read_list(text) or everyone


def pairs(attributes: str) -> Groups:
    """Reads the (source, target) device pairs from the attributes of a permutation."""
    found = _PAIRS.search(attributes)
    return _read_list(found[1]) if found else []


def axes_of(groups: Sequence[Sequence[int]], mesh: Topology) -> Axes | None:
    """Returns the mesh axes along which groups of all devices lie; None if it is not along axes."""
    indices = np.unravel_index(list(groups[0]), mesh.shape)
    along = [axis for axis, index in enumerate(indices) if len(set(index.tolist())) > 1]
    size = math.prod(mesh.shape[axis] for axis in along)
    last = range(len(mesh.shape) - len(along), len(mesh.shape))
    rows = np.moveaxis(mesh.ids(), along, list(last)).reshape(-1, size)
    same = {frozenset(group) for group in groups} == {frozenset(row) for row in rows.tolist()}
    return tuple(mesh.axes[axis] for axis in along) if same else None


def axes_between(pairs: Sequence[Sequence[int]], mesh: Topology) -> Axes:
    """Returns the mesh axes along which a permutation, (source, target) pairs, moves data."""
    if not pairs:
        return ()
    source, target = (
        np.stack(np.unravel_index(ids, mesh.shape)) for ids in zip(*pairs, strict=True)
    )
    moves = (source != target).any(axis=1)
    return tuple(axis for axis, is_moved in zip(mesh.axes, moves, strict=True) if is_moved)


def _read_list(text: str) -> Groups:
    return [_numbers(group) for group in re.findall(r"\{([\d,]+)\}", text)]


def _iota(text: str) -> np.ndarray:
    """Returns the int64 array, of any shape, of `[4,2]<=[2,4]T(1,0)` or of `[2,4]T(1,0)`."""
    sizes, _, rest = text.rpartition("<=")
    before = _numbers(rest[1 : rest.index("]")])
    order = re.search(r"T\(([\d,]+)\)", rest)
    ids = np.arange(math.prod(before)).reshape(before)
    ids = ids.transpose(_numbers(order[1])) if order else ids
    return ids.reshape(_numbers(sizes[1:-1])) if sizes else ids


def _groups_along(text: str) -> Groups:
    """Returns the groups of `mesh['a'=2,'b'=4], device_ids=(...) {'a'}`."""
    sizes_text, ids_text, axes_text = re.fullmatch(
        r"mesh\[([^\]]*)\](?:, device_ids=\((.*)\))? \{([^}]*)\}", text
    ).groups()  # type: ignore[union-attr]
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", sizes_text)}
    ids = np.arange(math.prod(sizes.values()))
    if ids_text:
        is_iota = ids_text.startswith("[")
        ids = _iota(ids_text).reshape(-1) if is_iota else np.array(_numbers(ids_text))
    shape: list[int] = []
    along: list[int] = []
    parts = {
        name: (int(before or 1), int(size or 0))
        for name, before, size in _SUB_AXIS.findall(axes_text)
    }
    for name, size in sizes.items():
        before, length = parts.get(name, (1, 1))
        length = length or size
        if name in parts:
            along.append(len(shape) + 1)
        shape += [before, length, size // (before * length)]
    last = list(range(len(shape) - len(along), len(shape)))
    num = math.prod(shape[axis] for axis in along)
    return np.moveaxis(ids.reshape(shape), along, last).reshape(-1, num).tolist()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
