"""The runtimes, which compute the steps: on one device, on replicas, or on a mesh."""

from __future__ import annotations

from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated
from lingo.runtimes.replicated.simulated_torus import SimulatedTorus
from lingo.runtimes.runtime import Runtime
from lingo.runtimes.tpu.tpu_mesh import TpuMesh

__all__ = [
    "Local",
    "Mesh",
    "Replicated",
    "Runtime",
    "SimulatedTorus",
    "TpuMesh",
]
