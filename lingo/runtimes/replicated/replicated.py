"""Replicas: every device has all weights, and computes the step on its part of the batch."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import os
from typing import Literal

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.learner.padding import row_multiple
from lingo.learner.state import Learner, TrainState
from lingo.processes.processes import ALONE, Processes, cluster
from lingo.runtimes.devices import advise_settings, list_gpus
from lingo.runtimes.layout import (
    GatherDtype,
    Layout,
    bytes_per_device,
    check_gather_dtype,
    replica_layout,
)
from lingo.runtimes.replicated.program import ReplicatedProgram
from lingo.runtimes.replicated.shares import Shares, check_statistics
from lingo.runtimes.replicated.workers import Workers, workers
from lingo.runtimes.runtime import Runtime, matmul_flops_per_second


class Replicated(Runtime):
    """Trains on replicas: the devices of a machine, of several workers, or of a TPU.

    Each replica computes the step of one device; sums over the batch (and of norms, with
    `shard_update`) are added up over all replicas once per step. A batch that the replicas cannot
    share equally is padded with examples of weight 0. If a layer (`BatchNorm`) would count padding,
    the batch is refused.

    With `shard_update` the replicas sum whole gradients, and gather the weights in one exchange
    after the update. It saves memory of slots and arithmetic of the update. It costs half as many
    bytes again, and a small exchange for each norm of a weight, as in LARS and LAMB. If a worker is
    lost, its chunks of slots are lost, so the run goes on from its last checkpoint.

    Several processes compute together if `TF_CONFIG` names them. Each uses all accelerators that it
    sees, or else one CPU. The TPU code is tested only as far as possible without a TPU; it has not
    run on one yet.
    """

    devices: Literal["all"] | list[str] = (
        "all"  # such as ["GPU:0", "GPU:1"]; all: accelerators, or else CPUs
    )
    shard_update: bool = False  # a replica updates, and keeps slots for, only a chunk of a weight
    gather_dtype: GatherDtype = "float32"  # of weight copies that replicas gather with shard_update
    xla: bool = False  # compile a replica's own computations with XLA; a TPU always does
    tpu: str | None = None  # where a TPU is: a name, a grpc:// address, or "local"; None: no TPU

    def check(self) -> None:
        p = self.p
        if p.shard_update and p.xla:
            raise ParamError(
                "shard_update=True adds up over replicas within the update, but xla=True compiles"
                " the update of one replica: take one of the two, or runtime=Mesh"
            )
        check_gather_dtype(self.p.gather_dtype, shard_update=p.shard_update)
        if p.devices == "all":
            return
        if p.tpu is not None:
            raise ParamError(
                f"devices={p.devices!r} and tpu={p.tpu!r}: a TPU computes on all cores"
            )
        twice = [name for name, count in collections.Counter(p.devices).items() if count > 1]
        if twice or not p.devices:
            raise ParamError(
                f"devices={p.devices!r}: write 'all', or a list that names each device once"
            )

    def num_host_devices(self) -> int:
        names = () if self.p.tpu is not None else self._names()
        return max(1, sum("CPU" in name.upper() for name in names))

    def join(self) -> Processes:
        joined = self._meet()
        return ALONE if joined is None else joined.group

    @property
    def compiles(self) -> bool:
        return self.p.xla or self.p.tpu is not None

    def start(self, learner: Learner, state: TrainState) -> ReplicatedProgram:
        xla = self.p.xla and self.p.tpu is None
        if (joined := self._meet()) is None:
            strategy, group, joint = self._strategy(), ALONE, contextlib.nullcontext
        else:
            strategy, group = joined
            joint = group.joint_computation
        num = strategy.num_replicas_in_sync
        layout = self._layout(learner, num) if self.p.shard_update else None
        return ReplicatedProgram(
            learner, state, strategy, group, layout=layout, joint_computation=joint, xla=xla
        )

    def layout(self, learner: Learner) -> Layout | None:
        num = self.num_replicas(devices_ready=False)
        return self._layout(learner, num) if self.p.shard_update and num else None

    def _layout(self, learner: Learner, num_replicas: int) -> Layout:
        if self._keeps_parts() and num_replicas == 1:
            raise ParamError(
                f"runtime: gather_dtype={self.p.gather_dtype!r}: one replica gathers no weights",
                "runtime",
            )
        return replica_layout(learner, num_replicas, keep_parts=self._keeps_parts())

    def _keeps_parts(self) -> bool:
        return self.p.gather_dtype != "float32"

    def host_bytes(self, learner: Learner) -> int:
        if not self.p.shard_update or self.p.tpu is not None:
            return super().host_bytes(learner)
        several, num_local = cluster(os.environ), len(self._names())
        num = num_local * (len(several.workers) if several else 1)
        sizes = bytes_per_device(learner, self._layout(learner, num))
        # A checkpoint of accelerators passes through this memory: one copy of all, or each chunk.
        copies = dict.fromkeys(("weights", "slots", "statistics"), self.num_host_devices())
        copies |= {"slots": num_local} | ({"weights": num_local} if self._keeps_parts() else {})
        return sum(sizes[kind].per_device * num for kind, num in copies.items())

    def check_learner(self, learner: Learner) -> None:
        super().check_learner(learner)
        if self.p.shard_update and not learner.optimizer.updates_rows():
            name = type(learner.optimizer).__name__
            raise ParamError(
                f"runtime: shard_update=True updates weights in rows, and {name} does not say that"
                " it takes them: set takes_rows = True in its class if it sums over a weight with"
                " lingo.optim.optimizer.weight_sum, or leave shard_update out",
                "runtime",
            )
        num = self.num_replicas(devices_ready=False)
        tables = (weight.path for weight in learner.weights().values() if weight.sparse)
        if self.p.shard_update and (table := next(tables, None)):
            raise ParamError(
                "runtime: shard_update=True updates weights in rows, but a step updates only the"
                f" looked-up rows of {table}, a sparse table: take a Mesh, leave shard_update out,"
                " or declare the table without sparse (EmbeddingTables.sparse_from=None)",
                "runtime",
            )
        if num is not None and learner.specs:
            shares = Shares(index=0, num_processes=1, num_replicas=num)
            xla = self.p.xla and self.p.tpu is None
            check_statistics(learner, shares, learner.specs["rows"][0][0], xla=xla)

    def num_replicas(self, *, devices_ready: bool) -> int | None:
        if self.p.devices != "all":
            return len(self.p.devices)
        if not devices_ready:
            return None
        joined = self._meet()
        return (self._strategy() if joined is None else joined[0]).num_replicas_in_sync

    def padded_batch_size(self, batch_size: int, learner: Learner) -> int:
        multiple = row_multiple(learner)
        return -(-batch_size // multiple) * multiple

    def matmul_flops_per_second(self, dtype: str) -> float:
        joined = self._meet()
        strategy, count = (self._strategy(), 1) if joined is None else (joined[0], joined[1].count)
        devices = tuple(strategy.extended.worker_devices)
        return count * matmul_flops_per_second(dtype, devices)

    def advice(self, dtype: str) -> list[str]:
        uses_gpus = self.p.tpu is None and any("GPU" in name.upper() for name in self._names())
        return advise_settings(list_gpus() if uses_gpus else [], dtype=dtype, xla=self.p.xla)

    def _meet(self) -> Workers | None:
        joined, p = workers(), self.p
        if joined is not None and (p.devices != "all" or p.tpu is not None):
            raise ParamError(
                "runtime.devices and runtime.tpu are for one process, but TF_CONFIG names several:"
                " each computes on all accelerators it sees (CUDA_VISIBLE_DEVICES), or on one CPU"
            )
        return joined

    def _strategy(self) -> tf.distribute.Strategy:
        if self.p.tpu is not None:
            return _tpu(self.p.tpu)
        return _mirrored_strategy(self._names())

    def _names(self) -> tuple[str, ...]:
        """Returns the names of the devices of this process, without starting TensorFlow."""
        if self.p.devices != "all":
            return tuple(self.p.devices)
        kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        devices = tf.config.list_physical_devices(kind)
        return tuple(f"{kind}:{i}" for i in range(sum(map(_num_logical, devices))))


def _num_logical(device: tf.config.PhysicalDevice) -> int:
    """Returns how many logical devices a physical device is configured as."""
    return len(tf.config.get_logical_device_configuration(device) or [device])


_first_group_keys = itertools.count(step=100_000)


@functools.cache
def _mirrored_strategy(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    """Returns the strategy of some devices; cached, because a strategy numbers its collectives."""
    existing = {device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()}
    for name in devices:
        if name.upper().removeprefix("/DEVICE:") not in existing:
            raise ParamError(
                f"runtime.devices names {name!r:.80}, but there are {', '.join(sorted(existing))}"
            )
    # TensorFlow would number the groups of every strategy from 1, but a process may have several.
    keys = {"_collective_key_base": next(_first_group_keys)}
    return type("MirroredStrategy", (tf.distribute.MirroredStrategy,), keys)(list(devices))


@functools.cache
def _tpu(tpu: str) -> tf.distribute.Strategy:
    from lingo.runtimes.tpu.cores import initialize

    return tf.distribute.TPUStrategy(initialize(tpu)[0])
