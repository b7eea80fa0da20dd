"""Steps on one device, or on one device per stage of a `PipelinedChain`.

On one device, all steps of a call are one `tf.function`. With stages:

    in each step                            on the stage's device
    read its variables                      yes
    compute, forward and backward           yes; activations pass from one device to the next
    add up gradients over micro-batches     yes
    clip, update, average, select           yes; sums of squares are added up on the first device
    assign its variables                    yes

A loop over steps would move the state through the loop's device, so each step is a call of its own.

`Int8Program` evaluates with weights that are rounded, or stored in 8 bits, before the first batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.layers.context import Call
from lingo.layers.layer import Layer
from lingo.layers.quantization.fold import dequantize_weights, fold_weights, quantize_weights
from lingo.layers.stacks.micro_batches import micro_batch_shape
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.learner.phase import are_always_due
from lingo.learner.placement import Placement
from lingo.learner.state import Learner, TrainState, WhichWeights, load_arrays
from lingo.learner.step import train_step
from lingo.learner.task import first_calls
from lingo.ops.scan import scan
from lingo.ops.scope import on_device, on_device_of_inputs
from lingo.runtimes.devices import advise_devices, advise_settings, list_gpus
from lingo.runtimes.program import Arrays, Computation, Feed, Program
from lingo.runtimes.runtime import Runtime


class Local(Runtime):
    """Trains on one device.

    On a CPU, runs are equal bit for bit. `deterministic` makes them so on other devices:
    operations use their slower deterministic form, and an operation without one raises an error.
    It stays set for the whole process: TensorFlow cannot unset it.

    With several `stage_devices` the stages of each `PipelinedChain` are on these devices in turn:
    a stage's forward and backward computation, weights, slots and states. Everything else is on
    the first device.
    """

    xla: bool = False  # compile the step with XLA; on CPUs it seldom pays
    stage_devices: int = 1  # devices for the stages of a PipelinedChain
    deterministic: bool = False  # the same bits in every run, also on accelerators; slower there

    def check(self) -> None:
        ranges.check_positive(self.p, "stage_devices")
        if self.p.xla and self.p.stage_devices > 1:
            raise ParamError(
                f"xla=True compiles for one device, not for stage_devices={self.p.stage_devices}:"
                " take one of them"
            )

    def check_learner(self, learner: Learner) -> None:
        super().check_learner(learner)
        if (num := self.p.stage_devices) == 1:
            return
        if not stages(learner):
            raise ParamError(
                f"stage_devices={num}, but the model has no PipelinedChain with stages for them;"
                " runtime=Mesh(stage=...) is for identical layers"
            )
        if not are_always_due(learner.task.phases()):
            raise ParamError(
                f"stage_devices={num} computes every phase at every step, and a phase of"
                f" {type(learner.task).__name__} is not due at every step: take stage_devices=1"
            )
        if (parts := learner.accumulation_steps) > 1:
            raise ParamError(
                f"accumulation_steps={parts} adds up gradients on one device, not on"
                f" stage_devices={num}: take {parts} times the num_micro_batches instead"
            )

    def start(self, learner: Learner, state: TrainState) -> LocalProgram:
        self.set_determinism()
        if self.p.stage_devices == 1:
            return LocalProgram(learner, state, Placement(compiled=self.compiles))
        names = self._stage_devices()
        devices = {where: names[k % len(names)] for where, k in stages(learner).items()}
        return StagedProgram(learner, state, StagePlacement(names[0], devices))

    def set_determinism(self) -> None:
        """Makes the operations of the process deterministic, if `deterministic` is set."""
        if self.p.deterministic:
            tf.config.experimental.enable_op_determinism()

    def advice(self, dtype: str) -> list[str]:
        xla = self.p.xla if self.p.stage_devices == 1 else None
        return advise_settings(list_gpus(), dtype=dtype, xla=xla)

    def _stage_devices(self) -> list[str]:
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        names = [device.name for device in tf.config.list_logical_devices(kind)]
        if len(names) < (wanted := self.p.stage_devices):
            raise ParamError(
                f"stage_devices={wanted}, but this process has {len(names)} of kind {kind}:"
                f" {advise_devices(wanted)}"
            )
        return names[:wanted]

    @property
    def compiles(self) -> bool:
        return self.p.xla


class LocalProgram(Program):
    """Runs a call's steps as a loop in one graph, between reading and assigning the variables."""

    def __init__(self, learner: Learner, state: TrainState, place: Placement) -> None:
        # Grappler's memory optimizer sums gradients in order of arrival, so the last bits differ
        # from run to run. This switch is the only way to disable it; steps are no slower.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        super().__init__(learner, place)
        self._variables = state.map(self._variable)
        self._step = tf.function(self._scan_step, autograph=False)

    def compile(self, specs: Specs, *, num_steps: int) -> None:
        # XLA needs all sizes; without it one trace fits any number of steps.
        lead = num_steps if self._place.compiled else None
        traced = {k: tf.TensorSpec([lead, *shape], dtype) for k, (shape, dtype) in specs.items()}
        self._train.get_concrete_function(traced)

    def graph(self, specs: Specs) -> tf.Graph:
        """Returns the graph of one step, as `compile` traced it."""
        batch = {k: tf.TensorSpec(shape, dtype) for k, (shape, dtype) in specs.items()}
        state = tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), self._variables)
        return self._step.get_concrete_function(tf.TensorSpec([], tf.int32), state, batch).graph

    def state(self, *, alone: bool = False) -> TrainState:
        return tf.nest.map_structure(lambda v: v.numpy(), self._variables)

    def load(self, state: TrainState) -> None:
        self._assign(load_arrays(state))  # if reading fails, nothing has changed

    @property
    def can_stream(self) -> bool:
        return not self._place.compiled

    def compile_steps(self) -> Any:
        return self._function(self._steps, reduce_retracing=True)

    def compile_call(self, computation: Computation) -> Any:
        def call(weights: WhichWeights, *args: Any) -> Any:
            return self._compute(computation, self._read(weights), *args)

        return self._function(call, reduce_retracing=computation.takes_prompts)

    def put(self, batch: Arrays, *, axis: int = 0, prompts: bool = False) -> Feed:
        tensors = {name: tf.constant(value) for name, value in batch.items()}
        return Feed((tensors,))

    def _function(self, function: Callable[..., Any], *, reduce_retracing: bool) -> Any:
        return tf.function(
            function,
            autograph=False,
            jit_compile=self._place.compiled,
            reduce_retracing=reduce_retracing,
        )

    def _steps(self, batches: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        num = tf.shape(batches["rows"])[0]
        state, reports = scan(self._step, self._variables, dict(batches), num)
        self._assign(state)
        return reports

    def _read(self, weights: WhichWeights) -> TrainState:
        """Returns the state as tensors, to evaluate."""
        return tf.nest.map_structure(tf.convert_to_tensor, self._variables).select(weights)

    def _variable(self, where: str, value: Any) -> tf.Variable:
        with self._place.device_scope(where):
            return tf.Variable(tf.convert_to_tensor(np.asarray(value)))

    def _assign(self, state: TrainState) -> None:
        tf.nest.map_structure(lambda v, value: v.assign(value), self._variables, state)


# ---- stages on several devices


def stages(learner: Learner) -> dict[str, int]:
    """Returns the stage number of each layer in a PipelinedChain: layer path -> number.

    Raises ParamError if a chain balances its stages by FLOPs and its input shape is unknown, or if
    its batch does not divide into equal micro-batches.
    """
    task = learner.task
    chains = [layer for layer in task.tree() if isinstance(layer, PipelinedChain)]
    without_times = [chain for chain in chains if chain.p.times is None]
    calls = first_calls(task, learner.specs, without_times) if without_times else {}
    shapes = {chain: micro_batch_shape(chain, call.shape) for chain, call in calls.items()}
    return {
        layer.path: number
        for chain in chains
        for number, indices in enumerate(chain.stage_layers(shapes.get(chain))[0])
        for layer in chain.layers[indices.start : indices.stop]
    }


class StagePlacement(Placement):
    """Places tensors of a stage's layers on its device, everything else on the first device."""

    def __init__(self, first: str, devices: Mapping[str, str]) -> None:
        """Takes the first device, and {path of a layer in a stage: the stage's device}."""
        super().__init__()
        self._first, self._devices = first, devices

    def call_fields(self) -> dict[str, Any]:
        return {**super().call_fields(), "devices": self._devices}

    def device(self, where: str) -> str:
        """Returns the device of a weight or state: its stage's device, or the first one."""
        while where and where not in self._devices:
            where = where.rpartition("/")[0]
        return self._devices.get(where, self._first)

    def device_scope(self, where: str) -> contextlib.AbstractContextManager[Any]:
        return on_device(self.device(where))

    def update_scope(self) -> contextlib.AbstractContextManager[Any]:
        return on_device_of_inputs(self._first)

    def shard_for_update(self, values: Mapping[str, Any]) -> dict[str, Any]:
        here = {}
        for where, value in values.items():
            with self.device_scope(where):
                here[where] = tf.identity(value)
        return here

    def select(self, condition: tf.Tensor, new: Any, old: Any) -> Any:
        selected: Any = tuple({} for _ in new)
        for device in dict.fromkeys((self._first, *self._devices.values())):
            new_part, old_part = self._of(device, new), self._of(device, old)
            with on_device(device):  # a single cond would copy all tensors to its own device
                part = tf.cond(condition, lambda x=new_part: x, lambda x=old_part: x)
            for values, more in zip(selected, part, strict=True):
                values.update(more)
        return selected

    def _of(self, device: str, parts: Any) -> Any:
        """Returns the entries of path -> tensor structures that are on a device."""
        return tuple(
            {where: value for where, value in part.items() if self.device(where) == device}
            for part in parts
        )


class StagedProgram(LocalProgram):
    """Runs one step per call; every variable is read and assigned on its own device."""

    def compile(self, specs: Specs, *, num_steps: int) -> None:
        self.graph(specs)

    def graph(self, specs: Specs) -> tf.Graph:
        batch = {k: tf.TensorSpec(shape, dtype) for k, (shape, dtype) in specs.items()}
        return self._train.get_concrete_function(batch).graph

    def train(self, batches: Arrays) -> dict[str, Any]:
        # A compiled call does one step. If a step fails, the state before the first is restored.
        several = len(batches["rows"]) > 1
        before = tf.nest.map_structure(lambda v: v.value(), self._variables) if several else None
        try:
            reports = [
                self._train(*self.put({k: values[i] for k, values in batches.items()}).args)
                for i in range(len(batches["rows"]))
            ]
        except tf.errors.OpError:
            if before is not None:
                self._assign(before)
            raise
        return tf.nest.map_structure(lambda *values: tf.stack(values), *reports)

    def _steps(self, batches: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        def tensor(where: str, variable: tf.Variable) -> tf.Tensor:
            with self._place.device_scope(where):
                return tf.identity(variable)

        state = self._variables.map(tensor)
        state, report = train_step(self._learner, state, batches, self._place)
        with tf.control_dependencies([tf.group(tf.nest.flatten((state, report)))]):
            self._assign(state)  # after everything is computed, so that it assigns all or nothing
        return report


# ---- weights that are ready before a program reads them: rounded, or int8


def fold_state(task: Layer, state: TrainState) -> TrainState:
    """Returns a state without slots, with weights as the layers' matrix products read them.

    Weights are path -> array [*stacked axes, ...]; stacked layers share an array. They are float32
    in `state`, and have the layers' dtype in the result.
    """
    return _ready_state(lambda call: fold_weights(task, call).weights, state)


def quantize_state(task: Layer, state: TrainState) -> TrainState:
    """Returns the result of `fold_state`, with matrix products' weights as int8 and scales."""
    return _ready_state(lambda call: quantize_weights(task, call), state)


def dequantize_state(task: Layer, state: TrainState) -> TrainState:
    """Returns a `quantize_state` result in the form of `fold_state`; the rounding remains."""
    weights = dequantize_weights(state.weights)
    arrays = {w: np.asarray(tf.cast(weights[w], s.dtype)) for w, s in task.weights().items()}
    return state._replace(weights=arrays)


def check_one_device(runtime: Runtime) -> None:
    """Raises ParamError unless a runtime is a `Local` on one device, which `Int8Program` needs."""
    message = "quantize='int8_weights' computes on one device, not on"
    if not isinstance(runtime, Local):
        raise ParamError(f"{message} {type(runtime).__name__}: set runtime=Local")
    if (num := runtime.p.stage_devices) > 1:
        raise ParamError(f"{message} stage_devices={num}: set runtime.stage_devices=1")


class Int8Program(LocalProgram):
    """Evaluates, predicts and decodes on one device with the state of `quantize_state`."""

    def __init__(self, learner: Learner, state: TrainState, runtime: Runtime) -> None:
        """Takes the run's runtime. If it is a `Local`, its `xla` and `deterministic` apply."""
        compiled = False
        if isinstance(runtime, Local):
            runtime.set_determinism()
            compiled = runtime.compiles
        super().__init__(learner, state, Placement(compiled=compiled, weights_ready=True))

    def _read(self, weights: WhichWeights) -> TrainState:
        return super()._read("trained")  # the quantized state has no averages to choose


def _ready_state(compute: Callable[[Call], Mapping[str, Any]], state: TrainState) -> TrainState:
    # Eagerly: in a graph, Grappler would change the last bit of divisions. Runs disable Grappler.
    weights, statistics = tf.nest.map_structure(tf.convert_to_tensor, (state.weights, state.state))
    ready = compute(Call(weights=weights, state=statistics))
    arrays = {where: np.asarray(value) for where, value in ready.items()}
    return TrainState(state.step, arrays, {}, state.state)
