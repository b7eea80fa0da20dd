"""One program, which XLA's partitioner splits over a mesh of devices (GSPMD, Xu et al. 2021)."""

from __future__ import annotations

import os

from lingo.data.array_spec import Specs
from lingo.learner.padding import padding_changes_results
from lingo.learner.state import Learner, TrainState
from lingo.processes.processes import Processes, cluster
from lingo.runtimes.compiled_program import CompiledProgram
from lingo.runtimes.devices import advise_settings, list_gpus
from lingo.runtimes.layout import batch_axes, bytes_per_device
from lingo.runtimes.mesh import engine
from lingo.runtimes.program import Program
from lingo.runtimes.sharded import Sharded


class Mesh(Sharded):
    """Trains on a mesh of devices: the product of its axes, from `data` to `stage`.

    All devices run the same step, each on its parts of batch and weights. Several processes, one
    per host, form one mesh if `TF_CONFIG` names them. Needs JAX: `pip install 'lingo-tf[mesh]'`.
    """

    def padded_batch_size(self, batch_size: int, learner: Learner) -> int:
        mesh = self.topology()
        parts = mesh.size(batch_axes(self.axis_rules(), mesh))
        padded = -(-batch_size // parts) * parts
        counts = learner.accumulation_steps > 1 or padding_changes_results(learner.task, padded)
        return batch_size if counts else padded

    def device_names(self) -> list[str]:
        return [str(device) for device in engine.engine().local_devices()]

    def advice(self, dtype: str) -> list[str]:
        if engine.engine().local_devices()[0].platform == "cpu":
            return []
        return advise_settings(list_gpus(), dtype=dtype, xla=None)

    def num_host_devices(self) -> int:
        several = cluster(os.environ)
        num_local = -(-self.topology().num_devices // (len(several.workers) if several else 1))
        return num_local if engine.engine().config.jax_platforms == "cpu" else 1

    def host_bytes(self, learner: Learner) -> int:
        sizes = bytes_per_device(learner, self.layout(learner))
        size = sum(sizes[kind].per_device for kind in ("weights", "slots", "statistics"))
        return size * self.num_host_devices()

    def make_devices(self, num_devices: int) -> None:
        engine.make_devices(num_devices)

    def join(self) -> Processes:
        from lingo.runtimes.mesh import cluster

        return cluster.join()

    def start(self, learner: Learner, state: TrainState) -> Program:
        from lingo.runtimes.mesh import cluster
        from lingo.runtimes.mesh.program import MeshProgram

        return MeshProgram(learner, state, self.layout(learner), cluster.members())

    def compile_program(
        self, learner: Learner, specs: Specs, *, evaluation: bool = False
    ) -> CompiledProgram:
        from lingo.runtimes.mesh.functions import Functions

        layout = self.layout(learner)
        functions = Functions(learner, layout, engine.device_mesh(layout.mesh), donate=True)
        return functions.compile(specs, evaluation=evaluation)

    def matmul_flops_per_second(self, dtype: str) -> float:
        return engine.matmul_flops_per_second(dtype, self.topology().num_devices)
