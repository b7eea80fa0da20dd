"""A mesh of devices: one program, which the partitioner of XLA splits over the devices.

GSPMD (Xu et al. 2021) splits the annotated step and inserts the collectives; results stay the same.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lingo.data.array_spec import Specs
from lingo.learner.padding import padding_changes_results
from lingo.learner.state import Learner, TrainState
from lingo.processes.processes import cluster
from lingo.runtimes.layout import batch_axes, bytes_per_device
from lingo.runtimes.runtime import Program
from lingo.runtimes.sharded import Sharded

if TYPE_CHECKING:
    from lingo.processes.processes import Processes
    from lingo.runtimes.compiled_program import CompiledProgram


class Mesh(Sharded):
    """Trains on a mesh of devices: data * model * expert * sequence * stage of them.

    All devices run the same step, each on its parts of batch and weights. Several processes, one
    per host, form one mesh if `TF_CONFIG` names them. Needs JAX: `pip install 'lingo-tf[mesh]'`.
    """

    def padded_batch_size(self, num_rows: int, learner: Learner) -> int:
        mesh = self.topology()
        parts = mesh.size(batch_axes(self.axis_rules(), mesh))
        filled = -(-num_rows // parts) * parts
        counts = learner.accumulation_steps > 1 or padding_changes_results(learner.task, filled)
        return num_rows if counts else filled

    def device_names(self) -> list[str]:
        from lingo.runtimes.mesh.engine import engine

        return [str(device) for device in engine().local_devices()]

    def num_host_devices(self) -> int:
        from lingo.runtimes.mesh.engine import engine

        several = cluster(os.environ)
        here = -(-self.topology().num_devices // (len(several.workers) if several else 1))
        return here if engine().config.jax_platforms == "cpu" else 1

    def host_bytes(self, learner: Learner) -> int:
        found = bytes_per_device(learner, self.layout(learner))
        kept = sum(found[kind].per_device for kind in ("weights", "slots", "statistics"))
        return kept * self.num_host_devices()

    def make_devices(self, num_devices: int) -> None:
        from lingo.runtimes.mesh import engine

        engine.make_devices(num_devices)

    def join(self) -> Processes:
        from lingo.runtimes.mesh import cluster

        return cluster.join()

    def start(self, learner: Learner, state: TrainState) -> Program:
        from lingo.runtimes.mesh import cluster
        from lingo.runtimes.mesh.program import MeshProgram

        return MeshProgram(learner, state, self.layout(learner), cluster.members())

    def compile_program(
        self,
        learner: Learner,
        specs: Specs,
        *,
        evaluation: bool = False,
    ) -> CompiledProgram:
        from lingo.runtimes.mesh import partition
        from lingo.runtimes.mesh.engine import device_mesh
        from lingo.runtimes.mesh.functions import Functions

        layout = self.layout(learner)
        functions = Functions(learner, layout, device_mesh(layout.mesh), donate=True)
        compiled = partition.compile_evaluation if evaluation else partition.compile_training
        return compiled(functions, layout.mesh, specs)

    def matmul_flops_per_second(self, dtype: str) -> float:
        from lingo.runtimes.mesh import peak

        return peak.matmul_flops_per_second(dtype, self.topology().num_devices)
