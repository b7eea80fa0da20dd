"""What training changes: weights, optimizer slots, moving statistics and the step number.

On the host and in checkpoints every tensor has the name of one layer's weight
(`weights/model/stack/layers/3/ffn/w_in`). In a program alike layers may be stacked; the same
checkpoint serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from lingo.layers import path
from lingo.layers.layer import Spec
from lingo.ops import random
from lingo.optim.optimizer import Optimizer, Slot, Weight
from lingo.train.record.checkpoint import Checkpoint
from lingo.train.task import Task

EMA = "ema"


class TrainState(NamedTuple):
    """All that a step reads and writes, keyed by program path.

    Attributes:
        step: int32 scalar, steps done.
        weights: path -> float32 tensor.
        slots: path -> {slot: tensor}; the slot `ema` is the moving average of the weight.
        state: path -> float32 tensor, moving statistics.
    """

    step: Any
    weights: dict[str, Any]
    slots: dict[str, dict[str, Any]]
    state: dict[str, Any]


class Learner(NamedTuple):
    """What a training step is made of; fixed while a program runs.

    Attributes:
        task: what is learned.
        optimizer: how.
        seed: of initial values and of randomness in the step.
        accumulation_steps: parts of a batch whose gradients are computed one after the other.
    """

    task: Task
    optimizer: Optimizer
    seed: int = 0
    accumulation_steps: int = 1

    def weights(self) -> dict[str, Weight]:
        """Returns what the optimizer may know of each weight, by program path."""
        return {
            where: Weight(where, tuple(path.names(where)), spec.program_shape, spec.num_stacked)
            for where, spec in self.task.weights().items()
        }

    def slots(self) -> dict[str, dict[str, Slot]]:
        """Returns what is kept for each weight between steps, by program path."""
        found = {where: self.optimizer.slots(weight) for where, weight in self.weights().items()}
        if self.optimizer.p.ema_decay is not None:
            for where, weight in self.weights().items():
                found[where] = {**found[where], EMA: Slot(weight.shape, 0.0, weight.names)}
        return found


def structure(learner: Learner, tensor: Callable[[tuple[int, ...]], Any]) -> TrainState:
    """Returns a state in which every tensor is made from its shape; the step's is ()."""
    return TrainState(
        tensor(()),
        {k: tensor(weight.shape) for k, weight in learner.weights().items()},
        {k: {n: tensor(s.shape) for n, s in slots.items()} for k, slots in learner.slots().items()},
        {k: tensor(spec.program_shape) for k, spec in learner.task.states().items()},
    )


def initial_value(spec: Spec, seed: int) -> np.ndarray:
    """Returns the initial values of a weight or state in program form, float32."""
    root = random.root_key(seed)
    drawn = [
        spec.init.draw(path.key(root, name), spec.shape, fan_in=spec.fan_in)
        for name in path.names(spec.path)
    ]
    return np.stack(drawn).reshape(spec.program_shape)


def initial_state(learner: Learner) -> TrainState:
    """Returns the state before the first step, as NumPy arrays."""
    weights = {k: initial_value(spec, learner.seed) for k, spec in learner.task.weights().items()}
    state = {k: initial_value(spec, learner.seed) for k, spec in learner.task.states().items()}
    slots = {
        where: {
            name: weights[where] if name == EMA else np.full(slot.shape, slot.fill, np.float32)
            for name, slot in slots.items()
        }
        for where, slots in learner.slots().items()
    }
    return TrainState(np.int32(0), weights, slots, state)


# ---- as checkpoints name it --------------------------------------------------------------------


class _Entry(NamedTuple):
    """One tensor of the program and the names of those it holds in a checkpoint."""

    kind: str  # first part of the names
    path: str
    shape: tuple[int, ...]
    slot: Slot | None = None

    def names(self) -> list[str]:
        return [f"{self.kind}/{name}" for name in path.names(self.path)]

    def kept(self) -> list[bool]:
        """Which of the tensors are saved: a slot of a frozen layer is not."""
        names = path.names(self.path)
        return [self.slot is None or name in self.slot.names for name in names]

    def one_shape(self) -> tuple[int, ...]:
        return self.shape[len(path.stack_shape(self.path)) :]

    def value(self, state: TrainState) -> Any:
        if self.slot is not None:
            return state.slots[self.path][self.kind.removeprefix("slots/")]
        return (state.weights if self.kind == "weights" else state.state)[self.path]


def _entries(learner: Learner) -> Iterator[_Entry]:
    for where, weight in learner.weights().items():
        yield _Entry("weights", where, weight.shape)
    for where, slots in learner.slots().items():
        for name, slot in slots.items():
            yield _Entry(f"slots/{name}", where, slot.shape, slot)
    for where, spec in learner.task.states().items():
        yield _Entry("state", where, spec.program_shape)


def named_shapes(learner: Learner) -> dict[str, tuple[int, ...]]:
    """Returns name in a checkpoint -> shape, for everything but the step."""
    return {
        name: entry.one_shape()
        for entry in _entries(learner)
        for name, kept in zip(entry.names(), entry.kept(), strict=True)
        if kept
    }


def named(learner: Learner, state: TrainState) -> Iterator[tuple[str, Any]]:
    """Yields (name in a checkpoint, tensor of one layer) for everything but the step."""
    for entry in _entries(learner):
        parts = entry.value(state).reshape((-1, *entry.one_shape()))
        for name, kept, part in zip(entry.names(), entry.kept(), parts, strict=True):
            if kept:
                yield name, part


def from_named(learner: Learner, step: int, values: Mapping[str, np.ndarray]) -> TrainState:
    """Returns the state that `named` took apart.

    Args:
        learner: whose state it is; alike layers may be stacked otherwise than when it was saved.
        step: steps done.
        values: name -> tensor.
    """
    state = structure(learner, lambda shape: np.zeros(shape, np.float32))
    for entry in _entries(learner):
        parts = entry.value(state).reshape((-1, *entry.one_shape()))  # a view
        for i, (name, kept) in enumerate(zip(entry.names(), entry.kept(), strict=True)):
            parts[i] = values[name] if kept else entry.slot.fill if entry.slot else 0.0
    return state._replace(step=np.int32(step))


def restored(learner: Learner, found: Checkpoint) -> TrainState:
    """Returns the state that a checkpoint holds, as NumPy arrays.

    Raises:
        CheckpointMismatch: if it is of another model.
    """
    shapes = named_shapes(learner)
    found.require({name: (shape, "float32") for name, shape in shapes.items()})
    return from_named(learner, found.step, found.read(shapes))
