"""A mesh of TPU cores: TensorFlow's TPU runtime partitions and runs the same annotated step."""

from __future__ import annotations

from lingo.config.params import ParamError
from lingo.learner.state import Learner, TrainState
from lingo.runtimes.program import Program
from lingo.runtimes.runtime import matmul_flops_per_second
from lingo.runtimes.sharded import Sharded
from lingo.runtimes.tpu.cores import connect


class TpuMesh(Sharded):
    """Trains on a mesh of all cores of a TPU: the product of its axes, from `data` to `stage`.

    Fields and annotations are those of `Mesh`; `TPUStrategy` runs the step on all cores as one
    replica, which XLA partitions. The innermost axis is on neighbouring cores. One process feeds
    all hosts, so no other processes are launched. The code is tested only as far as possible
    without a TPU; it has not run on one yet.
    """

    tpu: str = "local"  # where it is: a name, a grpc:// address, or "local": in this machine

    def make_devices(self, num_devices: int) -> None:
        raise ParamError(
            f"devices={num_devices}: {type(self).__name__} computes on the cores of a TPU, and none"
            " can be made: runtime=Mesh computes on virtual devices"
        )

    def start(self, learner: Learner, state: TrainState) -> Program:
        from lingo.runtimes.tpu.program import TpuMeshProgram

        cores = connect(self.p.tpu, self.topology())
        return TpuMeshProgram(learner, state, self.layout(learner), cores)

    def matmul_flops_per_second(self, dtype: str) -> float:
        cores = connect(self.p.tpu, self.topology())
        return matmul_flops_per_second(dtype, cores.devices)
