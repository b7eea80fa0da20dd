"""Trains on one device, or on one device per stage of a `PipelinedChain`."""

from __future__ import annotations

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.learner.state import Learner, TrainState
from lingo.learner.step import Placement
from lingo.runtimes import peak
from lingo.runtimes.local_program import LocalProgram
from lingo.runtimes.runtime import Runtime
from lingo.runtimes.staged import StagedProgram, StagePlacement, stages


class Local(Runtime):
    """Trains on one device.

    On a CPU, runs are always equal bit for bit. `deterministic` makes them so on other devices:
    operations use their slower deterministic form, and those that have none raise an error. It
    stays set for the whole process: TensorFlow cannot unset it.

    With several `stage_devices` the stages of each `PipelinedChain` are placed on these in turn:
    their forward and backward computation, their weights, and the slots and states of these.
    Everything else is on the first device.
    """

    xla: bool = False  # compile the step with XLA; on processors it seldom pays
    stage_devices: int = 1  # on which the stages of a PipelinedChain stand
    deterministic: bool = False  # the same bits in every run, also on accelerators; slower there

    def check(self) -> None:
        ranges.check_positive(self.p, "stage_devices")
        if self.p.xla and self.p.stage_devices > 1:
            raise ParamError(
                f"xla=True compiles for one device, not for stage_devices={self.p.stage_devices}:"
                " take one of them"
            )

    def check_learner(self, learner: Learner) -> None:
        if (num := self.p.stage_devices) == 1:
            return
        if not stages(learner):
            raise ParamError(
                f"stage_devices={num} are for the stages of a PipelinedChain, and no layer is one;"
                " alike layers stand on devices by runtime=Mesh(stage=...)"
            )
        if (parts := learner.accumulation_steps) > 1:
            raise ParamError(
                f"accumulation_steps={parts} adds gradients up on one device, not on"
                f" stage_devices={num}: take {parts} times the num_micro_batches for it"
            )

    def start(self, learner: Learner, state: TrainState) -> LocalProgram:
        if self.p.deterministic:
            tf.config.experimental.enable_op_determinism()
        if self.p.stage_devices == 1:
            return LocalProgram(learner, state, Placement(compiled=self.compiles))
        names = self._stage_devices()
        devices = {where: names[k % len(names)] for where, k in stages(learner).items()}
        return StagedProgram(learner, state, StagePlacement(names[0], devices))

    def _stage_devices(self) -> list[str]:
        """Returns the names of the devices that stages are placed on."""
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        names = [device.name for device in tf.config.list_logical_devices(kind)]
        if len(names) < (wanted := self.p.stage_devices):
            raise ParamError(
                f"stage_devices={wanted}, but here are {len(names)} of kind {kind}:"
                f" --devices={wanted} makes so many of the processor"
            )
        return names[:wanted]

    @property
    def compiles(self) -> bool:
        return self.p.xla

    def matmul_flops_per_second(self, dtype: str) -> float:
        return peak.matmul_flops_per_second(dtype)
