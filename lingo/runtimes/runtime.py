"""The contract of a runtime: which devices compute the step, and where the state lives."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from lingo.config.errors import LingoError
from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.data.array_spec import Specs
from lingo.decode.decoding import Decoding
from lingo.learner.state import Learner, TrainState, WhichWeights, num_bytes
from lingo.processes.processes import ALONE, Processes, cluster
from lingo.runtimes.devices import split_processor
from lingo.runtimes.layout import Layout
from lingo.runtimes.partitioned import CompiledProgram

_NODE = re.compile(r"\{\{node (.*?)\}\}")
_PLUMBING = re.compile(
    r"\[\[?\{\{.*?\}\}\]\]?|\[Op:.*?\]|tf2xla conversion failed.*|"
    r"^(Graph execution error:|Detected at node|Stack trace for op|\s*File \"|<stack traces).*",
    re.MULTILINE,
)
"""What TensorFlow's messages say about its graph rather than about what went wrong."""


class ProgramError(LingoError):
    """A device could not compute what it was told to."""


@contextlib.contextmanager
def explain_program_errors(what: str) -> Iterator[None]:
    """Turns an error of TensorFlow's graphs inside into a ProgramError with all that it says.

    A ProgramError of another engine gets to say what was computed.

    Args:
        what: is computed, for the message: "step 12".
    """
    try:
        yield
    except tf.errors.OpError as error:
        raise ProgramError(f"{what}: {_explain(error)}") from error
    except ProgramError as error:
        raise ProgramError(f"{what}: {error}") from error


def _explain(error: tf.errors.OpError) -> str:
    """Returns kind and message of an error without its call stacks, and the layer if it has one."""
    lines = (" ".join(line.split()) for line in _PLUMBING.sub("", error.message).splitlines())
    said = "; ".join(dict.fromkeys(line for line in lines if line)) or "no message"
    found = _NODE.search(error.message)
    place = f", in {found[1]}" if found else ""
    return f"{type(error).__name__}: {said}{place}"


class Program(Protocol):
    """A learner at work on some devices. It owns the state until it is asked for.

    Of several processes all make the same calls, each with the `rows` of a batch that it feeds.
    """

    def compile(self, specs: Specs, *, num_steps: int) -> CompiledProgram | None:
        """Traces `train`, so that layers that do not fit together are found before a run begins.

        Args:
            specs: name -> (shape, dtype) of a batch.
            num_steps: K of most calls.

        Returns:
            What became of it, where it was cut into parts for several devices.
        """
        ...

    def graph(self, specs: Specs) -> tf.Graph:
        """Returns the graph of one step, as `compile` traced it.

        Args:
            specs: as for `compile`.
        """
        ...

    def train(self, batches: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Does K steps.

        Args:
            batches: [K, B, ...] arrays, one batch a step.

        Returns:
            What `update` reports, [K, ...] each: `scalars`, tag -> float32; `states`, additive
            metric states; `shown`, program path -> statistics of layers; `not_finite`, int32.
        """
        ...

    def evaluate(
        self, batch: Mapping[str, np.ndarray], *, weights: WhichWeights = "trained"
    ) -> dict[str, Any]:
        """Returns the metric states of a batch: of all its rows, in every process.

        Args:
            batch: [B, ...] arrays.
            weights: "trained" or "ema".
        """
        ...

    def decode(
        self,
        batch: Mapping[str, np.ndarray],
        decoding: Decoding,
        *,
        seed: int = 0,
        weights: WhichWeights = "trained",
    ) -> dict[str, np.ndarray]:
        """Continues the prompts of a batch, as `Task.decode` does: all of them, in every process.

        Args:
            batch: [B, ...] arrays.
            decoding: how tokens are chosen; what is compiled for it stays with this very object.
            seed: of what is drawn.
            weights: "trained" or "ema".
        """
        ...

    def rows(self, size: int) -> slice:
        """Returns which rows of a batch this process feeds: whoever calls the program makes these.

        Args:
            size: B of the whole batch, over all processes.
        """
        ...

    def state(self, *, alone: bool = False) -> TrainState:
        """Returns the state after the last step, arrays on the host that no later step changes.

        Of several processes each returns what it is to save, and all have to call it.

        Args:
            alone: the others are lost: returns everything, from what this process holds.

        Raises:
            ProgramError: if it does not hold everything.
        """
        ...

    def load(self, state: TrainState) -> None:
        """Goes on from another state of the same learner, arrays on the host; stays compiled."""
        ...


class Runtime(Configurable, kind=True):
    """How steps are computed: the value of an experiment's `mesh`."""

    def make_devices(self, num_devices: int) -> None:
        """Makes so many virtual devices of this process's processor, before anything is computed.

        Raises:
            ParamError: if it is too late, or if this runtime computes on no processors.
        """
        split_processor(num_devices)

    def join(self) -> Processes:
        """Meets the other processes of the run, before anything is computed; ALONE if it is one.

        A process meets them once; later calls return the same.

        Raises:
            ParamError: if TF_CONFIG does not say who they are.
            LostWorker: if they do not come.
        """
        if (several := cluster(os.environ)) is not None:
            kind, workers = type(self).__name__, len(several.workers)
            raise ParamError(
                f"mesh={kind} computes in one process, but TF_CONFIG names {workers} workers:"
                " set mesh=Replicated, or mesh=Mesh(data=...)"
            )
        return ALONE

    def start(self, learner: Learner, state: TrainState) -> Program:
        """Puts a state on the devices and returns the program that trains it."""
        raise NotImplementedError(f"{type(self).__name__} has no start")

    def check_learner(self, learner: Learner) -> None:
        """Raises ParamError if the learner cannot be computed on these devices."""
        del learner

    @property
    def compiles(self) -> bool:
        """Whether XLA compiles the step: all shapes in it have to be known."""
        return True

    def layout(self, learner: Learner) -> Layout | None:
        """Returns which part of the state each device holds; None where each holds all of it."""
        del learner
        return None

    def num_replicas(self, *, devices_ready: bool) -> int | None:
        """Returns how many replicas share a batch; None if only the devices know.

        Args:
            devices_ready: whether the devices are there to be asked.
        """
        del devices_ready
        return 1

    def padded_rows(self, num_rows: int, learner: Learner) -> int:
        """Returns how many rows a replica trains with, those that fill up its part included.

        Args:
            num_rows: its part of a batch, rounded up.
            learner: what is trained.
        """
        del learner
        return num_rows

    def device_names(self) -> list[str]:
        """Returns the names of the devices of this process, once it has joined."""
        return [device.name for device in tf.config.list_logical_devices()]

    def num_processors(self) -> int:
        """Returns how many devices hold their part of the state in this machine's memory."""
        return 1

    def host_bytes(self, learner: Learner) -> int:
        """Returns how much of a state this machine's memory has to hold, at the least.

        All of it: where it is on other devices, checkpoints still pass through.
        """
        return sum(num_bytes(learner).values()) * self.num_processors()

    def compile_program(
        self,
        learner: Learner,
        specs: Specs,
        *,
        evaluation: bool = False,
    ) -> CompiledProgram:
        """Compiles a training step without a state, where `layout` cuts it into parts.

        Args:
            learner: what is trained.
            specs: name -> (shape, dtype) of a whole batch.
            evaluation: whether to compile the metrics of a batch instead.
        """
        raise NotImplementedError(f"{type(self).__name__} has no partitioned")

    def matmul_flops_per_second(self, dtype: str) -> float:
        """Returns the measured peak of all devices together, a multiply-add as two operations.

        Args:
            dtype: of the matrices that are multiplied.
        """
        raise NotImplementedError(f"{type(self).__name__} has no matmul_flops_per_second")
