"""A program that was cut into parts: what the compiler made for one of many alike devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lingo.mesh.topology import Topology


class CompiledProgram(NamedTuple):
    """A compiled program of a mesh, and what it took to make it.

    Attributes:
        mesh: the devices.
        text: of the program of one device, as XLA prints it.
        num_steps: steps that the program does at once.
        memory: bytes on one device, in the compiler's account: `arguments`, `outputs`, `aliased`
            (of the outputs what lies where arguments did) and `temporaries`.
        trace_seconds: until XLA had the program of all devices.
        compile_seconds: from there to the one of each.
    """

    mesh: Topology
    text: str
    num_steps: int
    memory: Mapping[str, int]
    trace_seconds: float
    compile_seconds: float
