"""The collectives of a compiled program: the tensors that devices exchange.

XLA combines many reductions in one instruction. Each tensor of such an instruction is listed
separately here, since it comes from another layer. A collective in a loop counts once per
iteration.

XLA has several notations for the same groups of devices:

    {{0,1},{2,3}}                         a list
    [4,2]<=[2,4]T(1,0)                    0..7 as [2, 4], transposed, as [4, 2]: a row is a group
    mesh['a'=2,'b'=4] {'a'}               groups along an axis of a mesh
    mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b':(2)2}      in another order, part of an axis
    {}                                    one group of all devices
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lingo.mesh.hlo.module import (
    Array,
    Computation,
    Instruction,
    Module,
    Origins,
    Runs,
    common_name,
    executions,
    is_combined,
)
from lingo.mesh.split import Axes
from lingo.mesh.topology import Topology

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)

_SCATTER = "all-reduce-scatter"  # a TPU's fusion of a sum and the slice of it that a device keeps


class Collective(NamedTuple):
    """One tensor that devices exchange."""

    kind: str  # one of KINDS
    array: Array  # the larger of input and output on one device
    axes: Axes | None  # along which devices exchange it; None: not along whole slices of the mesh
    runs: Runs  # how often it runs
    op_name: str  # the framework's name of the operation behind it; may be ""

    @property
    def num_bytes(self) -> int:
        """Bytes on one device, summed over all runs."""
        return self.array.num_bytes * self.runs.times


def collectives(module: Module, mesh: Topology) -> list[Collective]:
    """Returns the collectives of a program compiled for a mesh, in the order of its text."""
    origins, found = Origins(module), list[Collective]()
    for computation, body, times in executions(module):
        if not _continues(computation, body):
            for instruction in body.values():
                found += _tensors(computation, instruction, body, times, mesh, origins)
    return found


def _continues(computation: str, body: Computation) -> bool:
    """Whether a computation repeats a collective that another computation has started.

    A TPU computes while devices exchange: its compiler puts a copy of the collective into fusions.
    """
    is_end = any('"AsyncCollectiveDone"' in instruction.rest for instruction in body.values())
    return is_end or computation.startswith("async_collective_fusion")


def _tensors(
    computation: str,
    instruction: Instruction,
    body: Computation,
    times: Runs,
    mesh: Topology,
    origins: Origins,
) -> Iterator[Collective]:
    kind = instruction.opcode.removesuffix("-start")
    if kind not in KINDS:
        return
    names, results = instruction.operands, instruction.arrays
    if kind != instruction.opcode and kind != "all-reduce":
        results = results[len(names) :]  # an asynchronous start returns operands and results
    if kind == "all-to-all" and len(names) > 1:  # one tensor, split into a part for each device
        names, results = names[:1], [Array(results[0].dtype, (len(names), *results[0].shape))]
    if kind == "collective-permute":
        axes = axes_between(pairs(instruction.rest), mesh)
    else:
        axes = axes_of(groups(instruction.rest, mesh.num_devices), mesh)
    kind = "reduce-scatter" if computation.startswith(_SCATTER) else kind
    own = instruction.op_name
    is_own = own and not is_combined(own)
    for name, result in zip(names, results, strict=False):
        array = max(result, *body[name].arrays, key=lambda array: array.num_bytes)
        origin = own if is_own else origins.find(computation, name) or common_name(own)
        yield Collective(kind, array, axes, times, origin)


# ---- groups of devices ---------------------------------------------------------------------------


Groups = list[list[int]]
"""Device numbers of each group."""

_LIST = r"\{(?:\{[\d,]*\},?)*\}"
_IOTA = r"\[[\d,]+\](?:<=\[[\d,]+\])?(?:T\([\d,]+\))?"
_MESH = rf"mesh\[[^\]]*\](?:, device_ids=\((?:{_IOTA}|[\d,]+)\))? \{{[^}}]*\}}"
_GROUPS = re.compile(rf"\breplica_groups=({_LIST}|{_IOTA}|{_MESH})")
_PAIRS = re.compile(rf"\bsource_target_pairs=({_LIST})")
_SUB_AXIS = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")


def groups(attributes: str, num_devices: int) -> Groups:
    """Reads the groups from a collective's attributes; the default is one group of all devices."""
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
    """Returns the mesh axes along which groups extend; None if they are no slices of the mesh."""
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
