"""Estimated cycles and memory tiles, which only a TPU's compiler writes into a program."""

from __future__ import annotations

import re

from lingo.mesh.hlo.module import Array, Module, executions

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_UNKNOWN_CYCLES = 2**63 - 1  # the compiler's number for no estimate
_TILED = re.compile(r"([a-z]+[0-9]*[a-z0-9]*)\[([\d,]*)\]\{([\d,]*):T\(([\d,]+)\)")


def cycles(module: Module) -> int:
    """Returns the cycles of one run of a program, as its compiler estimates them.

    They are a sum over operations that compute or copy. The compiler has no estimate for the time
    of exchanges between devices, nor for a few other operations.
    """
    return sum(
        int(found[1]) * times.times
        for _, body, times in executions(module)
        for instruction in body.values()
        if (found := _CYCLES.search(instruction.rest)) and int(found[1]) != _UNKNOWN_CYCLES
    )


def padding_bytes(module: Module) -> int:
    """Returns the bytes by which memory tiles make a program's arguments larger."""
    return sum(
        max(0, _padded_bytes(parameter.type) - sum(a.num_bytes for a in parameter.arrays))
        for parameter in module.computations[module.entry].values()
        if parameter.opcode == "parameter"
    )


def _padded_bytes(type: str) -> int:
    """Returns the bytes of the arrays of a type, `f32[5,200]{1,0:T(8,128)}`, padded to tiles."""
    total = 0
    for dtype, sizes, order, tile in _TILED.findall(type):
        shape = [int(size) for size in sizes.split(",") if size]
        tiles = [int(size) for size in tile.split(",")]
        minor = [int(axis) for axis in order.split(",") if axis]  # the axis that varies first
        for axis, size in zip(minor, reversed(tiles), strict=False):
            shape[axis] = -(-shape[axis] // size) * size
        total += Array(dtype, tuple(shape)).num_bytes
    return total
