"""The contract of a runtime: which devices compute the step, and where the state is.

Axes: K steps of one call, B examples of the whole batch; a process passes its part of B.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from lingo.config.errors import LingoError
from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.data.array_spec import Specs
from lingo.decode.decoding import Decoding
from lingo.layers.layer import Layer
from lingo.learner.state import Learner, TrainState, WhichWeights, num_bytes
from lingo.mesh.rules import check_name
from lingo.metrics.metric import State
from lingo.processes.processes import ALONE, Processes, cluster
from lingo.runtimes.compiled_program import CompiledProgram
from lingo.runtimes.devices import split_processor
from lingo.runtimes.layout import Layout

_NODE = re.compile(r"\{\{node (.*?)\}\}")
_PLUMBING = re.compile(
    r"\[\[?\{\{.*?\}\}\]\]?|\[Op:.*?\]|tf2xla conversion failed.*|"
    r"Hint: If you want to see a list.*|"
    r"^(Graph execution error:|Detected at node|Stack trace for op|\s*File \"|<stack traces).*",
    re.MULTILINE,
)
"""Matches those parts of TensorFlow's messages that describe its graph, not the cause."""

_PYTHON = "\nTraceback (most recent call last)"  # follows the error of a `tf.py_function`


_MATRIX_SIZES = (512, 1024, 2048, 4096, 8192)
_ENOUGH_SECONDS = 0.01  # time of one product that makes its launch overhead negligible
_MEASURED_SECONDS = 0.25


Arrays = Mapping[str, np.ndarray]
"""A batch, or several in a row: name -> array."""


class ProgramError(LingoError):
    """A device failed while it computed a program."""


class LostState(ProgramError):
    """Devices failed with parts of the state; the others go on once `load` gives them another.

    A run goes back as often as this is raised, so a runtime must not raise it for the same devices
    again after `load`.
    """


@contextlib.contextmanager
def explain_program_errors(what: str) -> Iterator[None]:
    """Turns a TensorFlow graph error into a ProgramError that names what was computed: "step 12".

    A ProgramError is raised again, of the same kind, with that name.
    """
    try:
        yield
    except tf.errors.OpError as error:
        raise ProgramError(f"{what}: {_explain(error)}") from error
    except ProgramError as error:
        raise type(error)(f"{what}: {error}") from error


def _explain(error: tf.errors.OpError) -> str:
    """Returns type and message of an error without call stacks, and the layer if it is known."""
    text = error.message.partition(_PYTHON)[0]
    lines = (" ".join(line.split()) for line in _PLUMBING.sub("", text).splitlines())
    message = "; ".join(dict.fromkeys(line for line in lines if line)) or "no message"
    node = _NODE.search(error.message)
    layer = f", in {node[1]}" if node else ""
    return f"{type(error).__name__}: {message}{layer}"


class Program(Protocol):
    """A learner on some devices; it owns the state.

    If there are several processes, all make the same calls, each with its own examples of the batch
    (see `example_slice`). A batch is name -> array [B, ...]; `rows`, int32 [B], is always one of
    them. `weights` is "trained" or "ema".
    """

    def compile(self, specs: Specs, *, num_steps: int) -> CompiledProgram | None:
        """Traces `train`, so that layers that do not fit together are found before a run begins.

        `specs` are name -> (shape, dtype) of the whole batch, `num_steps` is K of most calls.
        Returns the compiled program on a mesh of devices; None elsewhere.
        """
        ...

    def graph(self, specs: Specs) -> tf.Graph:
        """Returns the graph of one step, as `compile` traced it."""
        ...

    def train(self, batches: Arrays) -> dict[str, Any]:
        """Does K steps; `batches` are name -> [K, B, ...], one batch per step.

        Returns:
            Reports of `train_step`, each [K, ...]: `scalars`, tag -> float32; `metric_states`,
            additive; `statistics` of layers, by program path; `first_non_finite`, int32.
        """
        ...

    def evaluate(
        self, batch: Arrays, *, weights: WhichWeights = "trained", sums: Mapping[str, State] = {}
    ) -> Mapping[str, State]:
        """Adds the metric states of a [B, ...] batch to `sums`, and returns the new sums.

        The states are those of all examples, in every process. `sums` come from an earlier call,
        and their memory may be reused. The new sums are read by `read_sums`, and may still be
        computed while the host prepares the next batch: then the next call, or `read_sums`, raises
        the error of this batch. States and sums are float64, as a host would add them up: counts
        are exact up to 2**53, where sums in float32 would lose examples from 2**24 on. A device
        adds a few numbers per batch, so it does not matter where it computes float64 slowly.
        """
        ...

    def read_sums(self, sums: Mapping[str, State]) -> dict[str, dict[str, np.ndarray]]:
        """Returns what `evaluate` has added up as arrays of float64 on the host."""
        ...

    def predict(self, batch: Arrays, *, weights: WhichWeights = "trained") -> dict[str, np.ndarray]:
        """Returns predictions and weights of all examples of a [B, ...] batch, in every process.

        They are {name: [B, ...]}, as `predict_batch` returns them.
        """
        ...

    def decode(
        self, batch: Arrays, decoding: Decoding, *, seed: int = 0, weights: WhichWeights = "trained"
    ) -> dict[str, np.ndarray]:
        """Continues all prompts of a batch, as `Task.decode` does; returns all in every process.

        They are `tokens`, int32, and `log_probs`, float32, [B, ...] as `Decoding.decode` has them.
        The compiled program is cached for the object `decoding`; `seed` is of the random choices.
        """
        ...

    def example_slice(self, size: int) -> slice:
        """Returns which examples of a batch of `size` this process must pass to the program."""
        ...

    def state(self, *, alone: bool = False) -> TrainState:
        """Returns the state after the last step, as copies on the host: float32, the step int32.

        If there are several processes, all have to call it. Each returns what it must save, a NumPy
        array or `Shards` of each tensor in its own shape; or everything, if the others are lost
        (`alone`). Raises ProgramError if it does not hold what it should return.
        """
        ...

    def load(self, state: TrainState) -> None:
        """Replaces the state; compiled programs stay.

        Its tensors are arrays on the host, or `LazyArray`s, in the shapes of the learner's.
        """
        ...


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
        """Puts a state on the devices, as `Program.load`; returns the program that trains it."""
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
        """Returns which part of the state each device holds; None where each holds all of it."""
        return None

    def num_replicas(self, *, devices_ready: bool) -> int | None:
        """Returns how many replicas share a batch.

        None if that depends on devices that cannot be listed yet: `devices_ready` is False.
        """
        return 1

    def padded_batch_size(self, batch_size: int, learner: Learner) -> int:
        """Returns how many examples a replica trains with, padding examples included.

        `batch_size` is the number of examples of the batch per replica, rounded up.
        """
        return batch_size

    def device_names(self) -> list[str]:
        """Returns the names of the devices of this process, once it has joined."""
        return [device.name for device in tf.config.list_logical_devices()]

    def advice(self, dtype: str) -> list[str]:
        """Returns a sentence for each setting that is usually faster on these devices.

        A simulation says that it is one. `dtype` is that of the task. The process must have joined
        the others.
        """
        return []

    def num_host_devices(self) -> int:
        """Returns how many devices keep their part of the state in this machine's memory."""
        return 1

    def host_bytes(self, learner: Learner) -> int:
        """Returns the bytes of a state that this machine's memory must hold: by default, all.

        Checkpoints of other devices pass through this memory.
        """
        return sum(num_bytes(learner).values()) * self.num_host_devices()

    def compile_program(
        self, learner: Learner, specs: Specs, *, evaluation: bool = False
    ) -> CompiledProgram:
        """Compiles a training step, or evaluation, without a state, if `layout` splits the state.

        `specs` are name -> (shape, dtype) of a whole batch.
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
    """Returns the FLOP/s of the fastest of several products, because others may use the machine.

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
    """Raises ParamError if the axis of a weight or cache is a misspelt one (see `check_name`)."""
    for layer in task.tree():
        for spec in layer.declarations():
            for axis in filter(None, spec.axes):
                try:
                    check_name(axis)
                except ParamError as error:
                    raise ParamError(f"{layer}: {spec.path}: {error}", "task") from None
