"""The training state: weights, optimizer slots, moving statistics, the step number.

In a checkpoint every tensor belongs to one layer and is named after it
(`weights/model/stack/layers/3/ffn/w_in`). A program may stack the tensors of identical layers
along leading axes ("stacked axes"); a "program path" names such a tensor, stacked or not. So one
checkpoint serves programs with and without stacked layers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.config.roots.user_line import definition_line
from lingo.data.array_spec import Specs
from lingo.layers import path
from lingo.layers.tree import ParamSpec
from lingo.learner import loss_scale, part_count, phase, rate_factor
from lingo.learner.task import Task
from lingo.learner.weight_noise import WeightNoise
from lingo.ops import random
from lingo.optim.optimizer import Optimizer, Slot, Weight
from lingo.storage.shards import Index, LazyArray, Read, Shards

Slots: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The slots of all weights: program path -> {slot: tensor}."""

WhichWeights: TypeAlias = Literal["trained", "ema"]
"""The weights to evaluate and decode with: as trained, or their moving averages."""

EMA = "ema"
FLOAT_BYTES = 4  # weights, slots and statistics are float32 even if layers compute in 16 bits

FirstValue = Callable[[str], np.ndarray | None]
"""Returns the initial value of the named weight, float32; None if its initializer draws it."""

FirstSlot = Callable[[str, str], np.ndarray | None]
"""Returns a slot's initial value, float32, by the names of weight and slot; None: the usual one."""


class SavedTensors(Protocol):
    """A checkpoint as `restore_state` reads it: the tensors of one step, by name."""

    @property
    def step(self) -> int:
        """The number of steps done when the tensors were saved."""
        ...

    def require(self, expected: Mapping[str, tuple[Sequence[int], str]]) -> None:
        """Raises CheckpointMismatch unless the tensors are as expected: name -> (shape, dtype)."""

    def read_slices(self, names: Sequence[str], index: Sequence[slice]) -> Iterable[np.ndarray]:
        """Returns slice `index` of each named tensor; all tensors are float32 of one shape."""
        ...


class TrainState(NamedTuple):
    """Everything that a step reads and writes.

    A path names a tensor of the program, which may stack the tensors of identical layers.

    Attributes:
        step: int32 scalar, steps done.
        weights: path -> float32 [*stacked axes, *shape of the weight].
        slots: path -> {slot: float32 [*stacked axes, ...]}; the slot `ema` is the moving average
            of the weight or moving statistic.
        state: path -> float32 [*stacked axes, ...], moving statistics, and the loss scale.
    """

    step: Any
    weights: dict[str, Any]
    slots: dict[str, dict[str, Any]]
    state: dict[str, Any]

    def map(self, function: Callable[[str, Any], Any]) -> TrainState:
        """Returns a state with `function(path, tensor)` in place of each tensor, of any shape.

        The path names the weight or state that the tensor belongs to; the step's path is "".
        """

        def each(values: Mapping[str, Any]) -> dict[str, Any]:
            return {where: function(where, value) for where, value in values.items()}

        slots = {
            where: {slot: function(where, value) for slot, value in kept.items()}
            for where, kept in self.slots.items()
        }
        return TrainState(function("", self.step), each(self.weights), slots, each(self.state))

    def part(self, learner: Learner) -> TrainState:
        """Returns the tensors of this state that a learner has, float32 [...], and the step."""
        return TrainState(
            self.step,
            {where: self.weights[where] for where in learner.weights()},
            {where: self.slots[where] for where in learner.slots()},
            {where: self.state[where] for where in learner.states()},
        )

    def join(self, part: TrainState) -> TrainState:
        """Returns this state with tensors of `part`, float32 [...], in place of its own."""
        return TrainState(
            part.step,
            {**self.weights, **part.weights},
            {**self.slots, **part.slots},
            {**self.state, **part.state},
        )

    def select(self, weights: WhichWeights) -> TrainState:
        """Returns this state, or with "ema" the moving averages in place of weights and statistics.

        Statistics, such as a batch norm's, are averaged like weights: weights averaged over many
        steps do not fit the latest steps' statistics (as in Tan and Le 2019's EfficientNet code).
        """
        if weights == "trained":
            return self
        averages = {where: slots[EMA] for where, slots in self.slots.items()}
        return self._replace(
            weights={where: averages[where] for where in self.weights},
            state={where: averages.get(where, value) for where, value in self.state.items()},
        )


class Learner(NamedTuple):
    """A task, an optimizer and a seed, which define the training step; fixed in a program."""

    task: Task
    optimizer: Optimizer
    seed: int = 0  # for initial values and for randomness in steps
    accumulation_steps: int = 1  # parts of a batch whose gradients are added, one after the other
    specs: Specs = MappingProxyType({})  # name -> (shape, dtype) of a batch; {} if not known
    phase: str | None = None  # the phase of the task that it does; None: all phases, in turn
    whole: Task | None = None  # the `MultiTask` that has `task` as a part; None: `task` is no part
    weight_noise: WeightNoise | None = None  # noise of the weights in training; None: no noise

    def in_turn(self) -> list[Learner]:
        """Returns a learner for each phase of the task, in order; itself if there are no phases.

        The learner of a phase has only the weights, slots and statistics that the phase moves.
        """
        return [self._replace(phase=name) for name in self.task.phases()] or [self]

    def moves(self, where: str) -> bool:
        """Returns whether a step may move the weight or statistic at a program path."""
        return self.phase is None or self.task.phases()[self.phase].moves(where)

    def select(self, batch: Iterable[str]) -> Learner:
        """Returns the learner of the task that a batch with these arrays is for."""
        own = self.task.select(batch)
        return self if own is self.task else self._replace(task=own, whole=self.task)

    def weights(self) -> dict[str, Weight]:
        """Returns program path -> the `Weight` that describes this weight to the optimizer."""
        return {k: weight for k, weight in _weights(self.task).items() if self.moves(k)}

    def statistics(self) -> dict[str, ParamSpec]:
        """Returns program path -> declaration, of the states of the task."""
        return {k: spec for k, spec in self.task.states().items() if self.moves(k)}

    def states(self) -> dict[str, ParamSpec]:
        """Returns program path -> declaration, of the states of the task and of the step."""
        own = loss_scale.states(self.task) | rate_factor.states(self.optimizer)
        counts = phase.states(self.task.phases()) | part_count.states(self.whole or self.task)
        return {**self.task.states(), **own, **counts}

    def count_updates(self, where: str, state: TrainState) -> Any:
        """Returns how often the weight at a program path was updated, int32; skips included."""
        if self.whole is not None:
            return part_count.count_updates(self.whole, where, state.state)
        return phase.count_updates(self.task.phases(), where, state.step, state.state)

    def check(self) -> None:
        """Raises ParamError if the optimizer or the task's phases do not suit the weights."""
        weights = list(self.weights().values())
        self.optimizer.check_weights(weights)
        if self.weight_noise is not None:
            self.weight_noise.check_weights(weights)
        sparse = [weight.path for weight in weights if weight.sparse]
        if sparse and (parts := self.accumulation_steps) > 1:
            raise ParamError(
                f"{sparse[0]} is a sparse table: accumulation_steps={parts} adds up whole gradients"
                " over parts of a batch. Take accumulation_steps=1, or declare the table without"
                " sparse (EmbeddingTables.sparse_from=None)"
            )
        phases = self.task.phases()
        trained = {
            name: is_trained
            for weight in weights
            for name, is_trained in zip(
                weight.names, self.optimizer.trainable_layers(weight), strict=True
            )
        }
        moving = [k for k, spec in self.task.states().items() if spec.decay not in (None, 1.0)]
        try:
            phase.check_phases(phases, trained, [n for k in moving for n in path.names(k)])
            for name, own in phases.items():
                if not callable(getattr(self.task, own.loss, None)):
                    raise ParamError(f"{name!r}: {type(self.task).__name__} has no {own.loss!r}")
            for own in self.in_turn():
                own.weights()
        except ParamError as error:
            raise ParamError(f"{definition_line(self.task.phases)}: {error}") from None

    def slots(self) -> dict[str, dict[str, Slot]]:
        """Returns the description of each tensor's slots: {program path: {slot: description}}.

        Moving statistics have the slot `ema` alone, if the optimizer keeps averages.
        """
        slots = {where: self.optimizer.slots(weight) for where, weight in self.weights().items()}
        if self.optimizer.keeps_averages:
            weights = {k: spec for k, spec in self.task.weights().items() if self.moves(k)}
            for where, spec in {**weights, **self.statistics()}.items():
                average = Slot(spec.program_shape, 0.0, tuple(path.names(where)))
                slots[where] = {**slots.get(where, {}), EMA: average}
        return slots


@functools.lru_cache(maxsize=4)
def _weights(task: Task) -> dict[str, Weight]:
    """Returns path -> description of each weight; cached, as a task may have 100,000 weights."""
    weights = {}
    for where, spec in task.weights().items():
        names, shape, num = tuple(path.names(where)), spec.program_shape, spec.num_stacked
        weights[where] = Weight(
            where, names, shape, num, fan_in=spec.fan_in, dims=spec.axes, sparse=spec.sparse
        )
    return weights


def num_bytes(learner: Learner) -> dict[str, int]:
    """Returns the bytes of weights, optimizer slots and moving statistics, each counted once."""
    state = map_shapes(learner, lambda shape: FLOAT_BYTES * math.prod(shape))
    return {
        "weights": sum(state.weights.values()),
        "slots": sum(size for slots in state.slots.values() for size in slots.values()),
        "statistics": sum(state.state.values()),
    }


def map_shapes(learner: Learner, tensor: Callable[[tuple[int, ...]], Any]) -> TrainState:
    """Returns a learner's state with `tensor(shape)` in place of each tensor; the step's is ()."""
    return _build_state(learner, tensor(()), lambda entry: tensor(entry.shape))


def initial_value(spec: ParamSpec, seed: int, first_value: FirstValue | None = None) -> np.ndarray:
    """Returns a weight's or state's initial value, drawn or read: float32 [*spec.program_shape]."""
    return np.asarray(_initial_array(spec, seed, first_value))


def initial_state(
    learner: Learner, first_value: FirstValue | None = None, first_slot: FirstSlot | None = None
) -> TrainState:
    """Returns the state before the first step; moving averages start equal to the weights.

    Tensors have the shapes of `TrainState` and are lazy (`LazyArray`). When one is indexed, it is
    read by `first_value` or `first_slot`, or else drawn. The step is int32 0.
    """
    specs = {**learner.task.weights(), **learner.states()}
    first = {
        where: _initial_array(spec, learner.seed, first_value) for where, spec in specs.items()
    }

    def tensor(entry: _Entry) -> LazyArray:
        if entry.slot is None:
            return first[entry.path]
        slot = entry.kind.removeprefix("slots/")
        begin = first[entry.path].read if slot == EMA else entry.constant

        def read(names: Sequence[str], index: Index) -> Iterator[np.ndarray]:
            for name in names:
                value = first_slot(name, slot) if first_slot is not None else None
                yield from begin([name], index) if value is None else [value[index]]

        return LazyArray(_layer_names(entry.path), entry.shape, read)

    return _build_state(learner, np.int32(0), tensor)


def load_arrays(state: TrainState) -> TrainState:
    """Returns the same state in memory: every tensor as a NumPy array of its shape and dtype."""
    return tf.nest.map_structure(np.asarray, state)


def _layer_names(program_path: str) -> np.ndarray:
    """Returns the name of each layer's weight in a program's tensor: object [*stacked axes]."""
    names = np.array(path.names(program_path), object)
    return names.reshape(path.stack_shape(program_path))


def _initial_array(spec: ParamSpec, seed: int, first_value: FirstValue | None) -> LazyArray:
    root = random.root_key(seed)

    def part(name: str, index: Index) -> np.ndarray:
        if first_value is not None and (value := first_value(name)) is not None:
            return value[index]
        key = spec.init.key(root, name)
        return spec.init.draw(key, spec.shape, fan_in=spec.fan_in, index=index)

    def read(names: Sequence[str], index: Index) -> Iterator[np.ndarray]:
        return (part(name, index) for name in names)

    return LazyArray(_layer_names(spec.path), spec.program_shape, read)


# ---- names in checkpoints ----------------------------------------------------------------------


class _Entry(NamedTuple):
    """A tensor of the program, which a checkpoint holds as one tensor per stacked layer."""

    kind: str  # first part of the checkpoint's names: "weights", "slots/<slot>" or "state"
    path: str
    shape: tuple[int, ...]
    slot: Slot | None = None

    def names(self) -> list[str]:
        return [f"{self.kind}/{name}" for name in path.names(self.path)]

    def is_saved(self, name: str) -> bool:
        """Returns whether the tensor of this layer is saved: slots of frozen layers are not."""
        return self.slot is None or name in self.slot.names

    def saved_layers(self) -> list[bool]:
        return [self.is_saved(name) for name in path.names(self.path)]

    def num_stacked(self) -> int:
        return len(path.stack_shape(self.path))

    def layer_shape(self) -> tuple[int, ...]:
        return self.shape[self.num_stacked() :]

    def place(self, state: TrainState) -> tuple[dict[str, Any], str]:
        """Returns the dict in `state` that holds this tensor, and the tensor's key in the dict."""
        if self.slot is not None:
            return state.slots[self.path], self.kind.removeprefix("slots/")
        return (state.weights if self.kind == "weights" else state.state), self.path

    def constant(self, names: Sequence[str], index: Index) -> Iterator[np.ndarray]:
        """Yields, for each named layer, slice `index` of the slot's value before the first step."""
        fill = np.float32(self.slot.fill if self.slot else 0.0)
        return (np.broadcast_to(fill, self.layer_shape())[index] for _ in names)

    def read(self, read: Read, names: Sequence[str], index: Index) -> Iterator[np.ndarray]:
        """Yields slice `index` of each named layer's tensor: `read`, or `constant` if not saved."""
        saved = [name for name in names if self.is_saved(name)]
        parts = read([f"{self.kind}/{name}" for name in saved], index)
        values = dict(zip(saved, parts, strict=True))
        for name, value in zip(names, self.constant(names, index), strict=True):
            yield values.get(name, value)


def _entries(learner: Learner) -> Iterator[_Entry]:
    for where, weight in learner.weights().items():
        yield _Entry("weights", where, weight.shape)
    for where, slots in learner.slots().items():
        for name, slot in slots.items():
            yield _Entry(f"slots/{name}", where, slot.shape, slot)
    for where, spec in learner.states().items():
        yield _Entry("state", where, spec.program_shape)


def named_shapes(learner: Learner) -> dict[str, tuple[int, ...]]:
    """Returns {name in a checkpoint: shape of one layer's tensor}, for everything but the step."""
    return {
        name: entry.layer_shape()
        for entry in _entries(learner)
        for name, kept in zip(entry.names(), entry.saved_layers(), strict=True)
        if kept
    }


def slot_shapes(learner: Learner) -> dict[str, dict[str, tuple[int, ...]]]:
    """Returns {name: {slot: shape}} of each layer's weight or moving statistic that has slots."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in named_shapes(learner).items():
        kind, _, rest = name.partition("/")
        if kind == "slots":
            slot, _, weight = rest.partition("/")
            shapes.setdefault(weight, {})[slot] = shape
    return shapes


def named_tensors(learner: Learner, state: TrainState) -> Iterator[tuple[str, Any]]:
    """Yields (name in a checkpoint, float32 tensor of one layer) for everything but the step.

    Tensors have the shapes of `named_shapes`, which have no stacked axes. Where a tensor of the
    state is `Shards`, each layer's tensor is yielded as `Shards`.
    """
    for entry in _entries(learner):
        holder, key = entry.place(state)
        layers = _unstack(entry, holder[key])
        for name, kept, layer in zip(entry.names(), entry.saved_layers(), layers, strict=True):
            if kept:
                yield name, layer


def name_vectors(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns {name in a checkpoint: [E]} from {program path of a state: [*stacked axes, E]}."""
    return {
        f"state/{name}": vector
        for where, value in values.items()
        for name, vector in zip(path.names(where), value.reshape(-1, value.shape[-1]), strict=True)
    }


def _unstack(entry: _Entry, value: Any) -> Iterable[Any]:
    if isinstance(value, Shards):
        return value.unstack(entry.num_stacked())
    return np.asarray(value).reshape((len(entry.names()), *entry.layer_shape()))


def restore_state(learner: Learner, saved: SavedTensors) -> TrainState:
    """Returns the state that a checkpoint holds; its tensors are read when they are indexed.

    The learner may stack layers in another way than the learner that was saved. Raises
    CheckpointMismatch if the checkpoint belongs to another model.
    """
    shapes = named_shapes(learner)
    saved.require({name: (shape, "float32") for name, shape in shapes.items()})

    def tensor(entry: _Entry) -> LazyArray:
        read = functools.partial(entry.read, saved.read_slices)
        return LazyArray(_layer_names(entry.path), entry.shape, read)

    return _build_state(learner, np.int32(saved.step), tensor)


def _build_state(learner: Learner, step: Any, tensor: Callable[[_Entry], Any]) -> TrainState:
    state = TrainState(step, {}, {where: {} for where in learner.slots()}, {})
    for entry in _entries(learner):
        holder, key = entry.place(state)
        holder[key] = tensor(entry)
    return state
