"""The program that the compiler made for each device of a mesh (SPMD: the same on all)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lingo.mesh.topology import Topology


class CompiledProgram(NamedTuple):
    """A compiled program of a mesh, and the time that compilation took.

    Attributes:
        mesh: the devices.
        text: HLO of the program of one device, as XLA prints it.
        num_steps: steps that one call of the program does.
        memory: bytes on one device, as the compiler reports them: `arguments`, `outputs`, `aliased`
            (outputs that reuse the memory of arguments) and `temporaries`.
        trace_seconds: time to trace and lower the program of all devices.
        compile_seconds: time to partition it and compile the program of one device.
    """

    mesh: Topology
    text: str
    num_steps: int
    memory: Mapping[str, int]
    trace_seconds: float
    compile_seconds: float
