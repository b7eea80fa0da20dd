"""A learner compiled for some devices: the part that all runtimes share.

    feed = put(batch)                                       # onto the devices
    results = compile_call(PREDICT)("trained", *feed.args)  # on all of them, from their state
    predictions = get(results, feed)                        # NumPy arrays without padding

A runtime defines how its devices get a batch, how a function of state and batch is compiled for
them, and how results are read. `evaluate`, `predict` and `decode` use only these. `train` is one
more compiled call, which replaces the state. The runtime also defines how devices keep the state
(`state`, `load`). `CompiledProgram` is a mesh compiler's report about a program.

Axes: K steps of one call, B examples of the whole batch; a process passes its part of B.
"""

from __future__ import annotations

import abc
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.base.errors import LingoError
from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.decode.decoding import Decoding
from lingo.learner.placement import Placement
from lingo.learner.state import Learner, TrainState, WhichWeights
from lingo.learner.step import decode_batch, evaluate_batch, predict_batch, step_graph, train_step
from lingo.mesh.topology import Topology
from lingo.metrics.metric import State, add_states, read_states
from lingo.ops import random
from lingo.runtimes.devices import peak_memory_bytes

_NODE = re.compile(r"\{\{node (.*?)\}\}")
_PLUMBING = re.compile(
    r"\[\[?\{\{.*?\}\}\]\]?|\[Op:.*?\]|tf2xla conversion failed.*|"
    r"Hint: If you want to see a list.*|"
    r"^(Graph execution error:|Detected at node|Stack trace for op|\s*File \"|<stack traces).*",
    re.MULTILINE,
)
"""Matches the parts of TensorFlow's messages that describe its graph, not the cause."""
_PYTHON = "\nTraceback (most recent call last)"  # follows the error of a `tf.py_function`
Arrays = Mapping[str, np.ndarray]
"""A batch, or K stacked batches: name -> array."""


class ProgramError(LingoError):
    """A device failed while it computed a program."""


class LostState(ProgramError):
    """Devices failed, and parts of the state are lost; the other devices need a new one by `load`.

    Each LostState makes the run rewind. So after `load` a runtime must not raise it again for the
    same devices, or the run would loop for ever.
    """


@contextlib.contextmanager
def explain_program_errors(what: str) -> Iterator[None]:
    """Turns a TensorFlow graph error into a ProgramError that names what was computed: "step 12".

    A ProgramError is raised again, as the same class, with that name in front.
    """
    try:
        yield
    except tf.errors.OpError as error:
        raise ProgramError(f"{what}: {_explain(error)}") from error
    except ProgramError as error:
        raise type(error)(f"{what}: {error}") from error


class Computation(NamedTuple):
    """A function of a state and a batch that changes no state; see `lingo/learner/step.py`.

    It takes (task, weights, moving statistics, batch, *args, placement).
    """

    function: Callable[..., Any]
    is_sum: bool = False  # results add up over parts of a batch; else they are name -> [B, ...]
    takes_prompts: bool = False  # args are (decoding, key), and the length of examples varies


EVALUATE = Computation(evaluate_batch, is_sum=True)
PREDICT = Computation(predict_batch)
DECODE = Computation(decode_batch, takes_prompts=True)


class Feed(NamedTuple):
    """A batch on the devices."""

    args: tuple[Any, ...]  # arguments of a compiled call: the batch, in the runtime's form
    sizes: Sequence[int] = ()  # for `get`: examples that each process passed, without padding


class CompiledProgram(NamedTuple):
    """A program that the compiler made for each device of a mesh (SPMD: the same on all).

    `memory` has the bytes on one device, as the compiler reports them: `arguments`, `outputs`,
    `aliased` (outputs that reuse the memory of arguments) and `temporaries`.
    """

    mesh: Topology
    text: str  # HLO of the program of one device, as XLA prints it
    num_steps: int  # per call of the program
    memory: Mapping[str, int]
    trace_seconds: float  # to trace and lower the program of all devices
    compile_seconds: float  # to partition it and compile the program of one device
    topology: str | None = None  # TPUs that it is compiled for, "v5e:4x4"; None: the devices here


def _explain(error: tf.errors.OpError) -> str:
    """Returns type and message of an error without call stacks, and the layer if it is known."""
    text = error.message.partition(_PYTHON)[0]
    lines = (" ".join(line.split()) for line in _PLUMBING.sub("", text).splitlines())
    message = "; ".join(dict.fromkeys(line for line in lines if line)) or "no message"
    node = _NODE.search(error.message)
    layer = f", in {node[1]}" if node else ""
    return f"{type(error).__name__}: {message}{layer}"


class Program(abc.ABC):
    """A learner on some devices; it owns the state.

    If there are several processes, all make the same calls, each with its own examples of the batch
    (see `example_slice`). A batch is name -> array [B, ...], and always has `rows`, int32 [B].
    `weights` is "trained" or "ema".
    """

    def __init__(self, learner: Learner, place: Placement) -> None:
        """Makes the compiled calls, which trace nothing yet; a subclass then places the state."""
        self._learner, self._place = learner, place
        self._train = self.compile_steps()
        self._evaluate = self.compile_call(EVALUATE)
        self._predict = self.compile_call(PREDICT)
        self._decode = self.compile_call(DECODE)

    @abc.abstractmethod
    def compile(self, specs: Specs, *, num_steps: int) -> CompiledProgram | None:
        """Traces `train`, so that layers that do not fit together are found before a run begins.

        `specs` are name -> (shape, dtype) of the whole batch, `num_steps` is the K of most calls.
        Returns the compiled program on a mesh of devices; None elsewhere.
        """

    def graph(self, specs: Specs) -> tf.Graph:
        """Returns the graph of one step: here on one device, without sums over other devices.

        A subclass whose `compile` traces this graph anyway overrides this, to trace it only once.
        """
        return step_graph(self._learner, specs)

    def train(self, batches: Arrays) -> dict[str, Any]:
        """Does K steps; `batches` are name -> [K, B, ...], one batch per step.

        Returns:
            Reports of `train_step`, each [K, ...]: `scalars`, tag -> float32; `metric_states`,
            additive; `statistics`, path of a layer -> its statistics; `first_non_finite`, int32.
        """
        with self.call_context():
            return self._train(*self.put(batches, axis=1).args)

    def evaluate(
        self, batch: Arrays, *, weights: WhichWeights = "trained", sums: Mapping[str, State] = {}
    ) -> Mapping[str, State]:
        """Adds the metric states of a [B, ...] batch to `sums`, and returns the new sums.

        Every process gets the states of all examples. `sums` come from an earlier call; their
        memory may be reused. `read_sums` reads the new sums. They may still be computed while the
        host prepares the next batch; the next call, or `read_sums`, then raises this batch's error.

        States and sums are float64, so that counts are exact up to 2**53; float32 would lose
        examples from 2**24 on. Slow float64 does not matter: they are a few numbers per batch.
        """
        with self.call_context():
            states = self._evaluate(weights, *self.put(batch).args)
        return add_states(sums, states)

    def read_sums(self, sums: Mapping[str, State]) -> dict[str, dict[str, np.ndarray]]:
        """Returns the sums of `evaluate` as float64 NumPy arrays."""
        with self.call_context():
            return read_states(sums)

    @property
    def can_stream(self) -> bool:
        """Whether `decode` may call Python for each token, as `StreamedSampling` does."""
        return False

    def predict(self, batch: Arrays, *, weights: WhichWeights = "trained") -> dict[str, np.ndarray]:
        """Returns predictions and example weights for a whole [B, ...] batch, in every process.

        They are {name: [B, ...]}, as `predict_batch` returns them.
        """
        with self.call_context():
            feed = self.put(batch)
            return self.get(self._predict(weights, *feed.args), feed)

    def decode(
        self, batch: Arrays, decoding: Decoding, *, seed: int = 0, weights: WhichWeights = "trained"
    ) -> dict[str, np.ndarray]:
        """Continues all prompts of a batch, as `Task.decode` does; returns all in every process.

        The results are `tokens`, int32, and `log_probs`, float32, [B, ...] as in `Decoding.decode`.
        The compiled program is cached per object `decoding`; `seed` is for the random choices.
        """
        key = random.Key(*map(np.asarray, random.root_key(seed)))
        with self.call_context():
            feed = self.put(batch, prompts=True)
            return self.get(self._decode(weights, *feed.args, decoding, key), feed)

    def peak_memory_bytes(self) -> int:
        """Returns the peak memory so far of any one of this process's devices, in bytes.

        It is 0 if the devices do not report it, as CPUs do not.
        """
        return peak_memory_bytes()

    def example_slice(self, size: int) -> slice:
        """Returns the slice of a `size`-example batch that this process must pass (here: all)."""
        return slice(0, size)

    @abc.abstractmethod
    def state(self, *, alone: bool = False) -> TrainState:
        """Returns the state after the last step, as copies in host memory: float32, the step int32.

        If there are several processes, all have to call it. Each returns the part that it must
        save: a NumPy array or `Shards` of each tensor, in the tensor's own shape. With `alone`,
        which means that the other processes are lost, it returns everything. Raises ProgramError if
        this process does not hold all that it should return.
        """

    @abc.abstractmethod
    def load(self, state: TrainState) -> None:
        """Replaces the state; compiled programs stay.

        Its tensors are NumPy arrays, or `LazyArray`s, in the shapes of the learner's state.
        """

    # ---- methods that each runtime defines

    @abc.abstractmethod
    def compile_steps(self) -> Any:
        """Returns a function of (*feed.args) that compiles when first called.

        It does K steps, replaces the state, and returns what `train` does.
        """

    @abc.abstractmethod
    def compile_call(self, computation: Computation) -> Any:
        """Returns a function that compiles when first called; it returns the whole batch's results.

        Its arguments are "trained" or "ema" (which weights it uses), *feed.args, and *args.
        """

    @abc.abstractmethod
    def put(self, batch: Arrays, *, axis: int = 0, prompts: bool = False) -> Feed:
        """Puts a batch on the devices: name -> [B, ...], or, to train, [K, B, ...] with `axis` 1.

        With `prompts`, padding examples repeat a prompt, since an empty prompt cannot be continued.
        """

    def get(self, results: Mapping[str, Any], feed: Feed) -> dict[str, np.ndarray]:
        """Returns a compiled call's results as NumPy arrays, name -> [B, ...] without padding."""
        return {name: value.numpy() for name, value in results.items()}

    def call_context(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the context of each call; it may explain errors, or watch other processes."""
        return contextlib.nullcontext()

    def _scan_step(
        self, i: tf.Tensor, state: TrainState, batch: Any
    ) -> tuple[TrainState, dict[str, Any]]:
        """Does one step, on tensors, as the body of a `scan`."""
        return train_step(self._learner, state, batch, self._place)

    def _compute(self, computation: Computation, state: TrainState, *args: Any) -> Any:
        """Applies a computation to a state and (batch, *args), all tensors; returns its results."""
        task, place = self._learner.task, self._place
        return computation.function(task, state.weights, state.state, *args, place)
