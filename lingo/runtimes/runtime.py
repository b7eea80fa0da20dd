"""The contract of a runtime: which devices compute the step, and where the state is."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable

from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.data.array_spec import Specs
from lingo.layers.layer import Layer
from lingo.learner.state import Learner, TrainState, num_bytes
from lingo.mesh.rules import check_name
from lingo.processes.processes import ALONE, Processes, cluster
from lingo.runtimes.devices import split_processor
from lingo.runtimes.layout import Layout
from lingo.runtimes.program import CompiledProgram, Program

_MATRIX_SIZES = (512, 1024, 2048, 4096, 8192)
_ENOUGH_SECONDS = 0.01  # a product that takes this long has negligible launch overhead
_MEASURED_SECONDS = 0.25


class Runtime(Configurable, interface=True):
    """How steps are computed: the value of an experiment's `runtime`."""

    def make_devices(self, num_devices: int) -> None:
        """Splits the CPU of this process into virtual devices, before anything is computed.

        Raises ParamError if it is too late, or if this runtime does not compute on CPUs.
        """
        split_processor(num_devices)

    def join(self) -> Processes:
        """Connects to the other processes of the run, before anything is computed.

        A process connects once; later calls return the same object, ALONE for a single process.
        Raises ParamError if TF_CONFIG is invalid, or names workers that this runtime cannot use,
        and LostWorker if another process does not connect in time.
        """
        if (several := cluster(os.environ)) is not None:
            kind, workers = type(self).__name__, len(several.workers)
            raise ParamError(
                f"runtime={kind} computes in one process, but TF_CONFIG names {workers} workers:"
                " set runtime=Replicated, or runtime=Mesh(data=...)"
            )
        return ALONE

    def start(self, learner: Learner, state: TrainState) -> Program:
        """Puts a state on the devices, like `Program.load`; returns the program that trains it."""
        raise NotImplementedError(f"{type(self).__name__} has no start")

    def check_learner(self, learner: Learner) -> None:
        """Raises ParamError if the learner cannot be computed on these devices.

        By default it looks for misspelt axes, which only a mesh would read.
        """
        _check_axes(learner.task)

    @property
    def compiles(self) -> bool:
        """Whether XLA compiles the step, so that all shapes in it must be static."""
        return True

    def layout(self, learner: Learner) -> Layout | None:
        """Returns which part of the state each device holds; None if each holds all of it."""
        return None

    def num_replicas(self, *, devices_ready: bool) -> int | None:
        """Returns how many replicas share a batch.

        None if that depends on devices that cannot be listed yet: `devices_ready` is False.
        """
        return 1

    def padded_batch_size(self, batch_size: int, learner: Learner) -> int:
        """Returns how many examples a replica trains with, padding examples included.

        `batch_size` is the number of the batch's examples per replica, rounded up.
        """
        return batch_size

    def device_names(self) -> list[str]:
        """Returns the names of the devices of this process, once it has joined."""
        return [device.name for device in tf.config.list_logical_devices()]

    def advice(self, dtype: str) -> list[str]:
        """Returns a sentence for each setting that is usually faster on these devices.

        A simulation adds that it is a simulation. `dtype` is the task's. This process must already
        be connected to the other processes (`join`).
        """
        return []

    def num_host_devices(self) -> int:
        """Returns how many devices keep their part of the state in this machine's memory."""
        return 1

    def host_bytes(self, learner: Learner) -> int:
        """Returns how many bytes of a state this machine's memory must hold: by default, all.

        The state of accelerators passes through this memory into checkpoints.
        """
        return sum(num_bytes(learner).values()) * self.num_host_devices()

    def compile_program(
        self,
        learner: Learner,
        specs: Specs,
        *,
        evaluation: bool = False,
        topology: str | None = None,
    ) -> CompiledProgram:
        """Compiles a training step, or evaluation, without a state, if `layout` splits the state.

        `specs` are name -> (shape, dtype) of a whole batch; `topology` names TPUs to compile for;
        None: the devices here.
        """
        raise NotImplementedError(f"{type(self).__name__} has no compile_program")

    def matmul_flops_per_second(self, dtype: str) -> float:
        """Returns the measured peak FLOP/s of all devices together; a multiply-add is two."""
        return matmul_flops_per_second(dtype)


# ---- peak FLOP/s, against which a training step is compared --------------------------------------
#
# A data sheet says little about a virtual machine with two busy cores. A large matrix product on
# the same devices, just before training, shows what they can reach.


@functools.cache
def matmul_flops_per_second(dtype: str, devices: tuple[str, ...] = ("",)) -> float:
    """Returns the FLOP/s of products of matrices on all devices at once, measured once per process.

    The measurement takes 0.3 s. The device "" is the default device.
    """
    return len(devices) * peak(lambda size: _time_product(size, dtype, devices))


def peak(timed_product: Callable[[int], Callable[[], float]]) -> float:
    """Returns the FLOP/s of the fastest product, since other programs may slow down some.

    `timed_product(size)` returns a function that multiplies two square matrices once, and returns
    the seconds that this took.
    """
    for size in _MATRIX_SIZES:
        product = timed_product(size)
        if product() >= _ENOUGH_SECONDS:
            break
    deadline, fastest = time.perf_counter() + _MEASURED_SECONDS, math.inf
    while time.perf_counter() < deadline:
        fastest = min(fastest, product())
    return 2 * size**3 / fastest


def _time_product(size: int, dtype: str, devices: tuple[str, ...]) -> Callable[[], float]:
    matrices: list[tf.Tensor] = []
    for device in devices:
        with tf.device(device):
            matrices.append(tf.cast(tf.random.stateless_uniform([size, size], (0, 0)), dtype))

    def products() -> list[tf.Tensor]:
        corners: list[tf.Tensor] = []
        for device, matrix in zip(devices, matrices, strict=True):
            with tf.device(device):
                corners.append(tf.matmul(matrix, matrix)[0, 0])
        return corners

    compute = tf.function(products, autograph=False)

    def seconds() -> float:
        start = time.perf_counter()
        for value in compute():
            value.numpy()  # waits for the device
        return time.perf_counter() - start

    seconds()  # the first call also traces, and allocates memory
    return seconds


def _check_axes(task: Layer) -> None:
    """Raises ParamError if the axis of a weight or cache is misspelt (see `check_name`)."""
    for layer in task.tree():
        for spec in layer.declarations():
            for axis in filter(None, spec.axes):
                try:
                    check_name(axis)
                except ParamError as error:
                    raise ParamError(f"{layer}: {spec.path}: {error}", "task") from None
