"""The program that the compiler made for each device of a mesh (SPMD: the same on all)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lingo.mesh.topology import Topology


class CompiledProgram(NamedTuple):
    """A compiled program of a mesh, and the time that compilation took.

    `memory` has the bytes on one device, as the compiler reports them: `arguments`, `outputs`,
    `aliased` (outputs that reuse the memory of arguments) and `temporaries`.
    """

    mesh: Topology
    text: str  # HLO of the program of one device, as XLA prints it
    num_steps: int  # that one call of the program does
    memory: Mapping[str, int]
    trace_seconds: float  # to trace and lower the program of all devices
    compile_seconds: float  # to partition it and compile the program of one device
