"""Fits the states of layers to training examples, before the first step.

The layers are fitted one after the other, in the order in which the loss calls them. So a layer is
fitted to what the fitted layers before it compute.

Axes: B examples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.input import Input
from lingo.layers import context, path
from lingo.layers.layer import Layer
from lingo.learner.state import TrainState
from lingo.learner.task import CheckedBatch, Task

MAX_EXAMPLES = 100_000
"""The most examples to which layers are fitted: the first ones of the run's first epoch."""

_MAX_BYTES = 2**30  # of these examples


def layers_to_fit(task: Task, known: Collection[str] = ()) -> list[Layer]:
    """Returns the layers of a task that have their own `fit`, and no state at a path in `known`."""
    return [
        layer
        for layer in task.tree()
        if type(layer).fit is not Layer.fit
        and not any(path.join(layer.path, spec.path) in known for spec in layer.declarations())
    ]


def training_examples(data: Input) -> dict[str, np.ndarray]:
    """Returns the examples to which layers are fitted: {name: [B, ...]}, each example once.

    These are the first examples of the first epoch, at most `MAX_EXAMPLES` and a gigabyte. Raises
    ParamError if batches have several shapes.
    """
    first = data.batch(0)
    example_bytes = sum(array.nbytes for array in first.values()) // len(first["rows"])
    size = min(data.num_examples(), MAX_EXAMPLES, max(1, _MAX_BYTES // max(1, example_bytes)))
    batches, step = [], 0
    while data.examples_before(step) < size:
        batch = data.batch(step)
        if any(batch[name].shape[1:] != array.shape[1:] for name, array in first.items()):
            raise ParamError(
                f"{data.code_line()}: batches of {type(data).__name__} have several shapes, so no"
                " layer can be fitted to their examples: give one shape to all"
            )
        batches.append(batch)
        step += 1
    arrays = {name: np.concatenate([b[name] for b in batches])[:size] for name in first}
    return arrays | {"rows": np.arange(size, dtype=np.int32)}


def fit_layers(
    task: Task, layers: Sequence[Layer], start: TrainState, examples: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the fitted states, {path: float32 array}, which replace their values in `start`.

    Args:
        task: the task whose loss calls the layers.
        layers: the layers to fit.
        start: the state before the first step; its tensors are read only where layers read them.
        examples: {name: [B, ...]}, as `training_examples` returns them.

    Raises:
        ParamError: if the loss does not call a layer, or calls it in a loop over stacked layers, or
            if a fitted value is not finite, or does not have the shape of its state.
    """
    with tf.device("CPU:0"):
        batch = {name: tf.constant(value) for name, value in examples.items()}
    fitted: dict[str, np.ndarray] = {}
    waiting = list(layers)
    while waiting:
        layer, x = _next_call(task, waiting, start, fitted, batch)
        for name, value in layer.fit(x).items():
            fitted[path.join(layer.path, name)] = _check_value(layer, name, value)
        waiting.remove(layer)
    return fitted


class _Reached(Exception):
    """Ends a computation of the loss at the call of a layer that is to be fitted."""

    def __init__(self, layer: Layer, x: Any) -> None:
        super().__init__()
        self.layer, self.x = layer, x


class _Lazy(Mapping[str, Any]):
    """Arrays by path; an array becomes a tensor when it is read."""

    def __init__(self, *arrays: Mapping[str, Any]) -> None:
        self._arrays = {where: value for values in arrays for where, value in values.items()}

    def __getitem__(self, where: str) -> Any:
        return tf.constant(np.asarray(self._arrays[where]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _next_call(
    task: Task,
    waiting: list[Layer],
    start: TrainState,
    fitted: Mapping[str, np.ndarray],
    batch: Mapping[str, Any],
) -> tuple[Layer, np.ndarray]:
    """Returns the waiting layer that the loss calls first, and its first input as an array."""
    call = {
        "state": _Lazy(start.state, fitted),
        "rows": batch["rows"],
        "observer": _stop_at(waiting),
    }
    try:
        with tf.device("CPU:0"):
            context.apply(task, _Lazy(start.weights), CheckedBatch(batch), method="loss", call=call)
    except _Reached as reached:
        layer, x = reached.layer, reached.x
        if path.stack_shape(layer.path) or not hasattr(x, "numpy"):
            raise ParamError(
                f"{layer} stands in a loop over stacked layers, where it cannot be fitted: put it"
                " before Repeat or Pipeline, or take Stack in place of them"
            ) from None
        return layer, x.numpy()
    raise ParamError(f"{waiting[0]} is fitted before step 1, but the loss does not call it")


def _stop_at(waiting: list[Layer]) -> Callable[..., None]:
    def observe(layer: Layer, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        if layer in waiting:
            raise _Reached(layer, (*args, *keywords.values())[0])

    return observe


def _check_value(layer: Layer, name: str, value: np.ndarray) -> np.ndarray:
    """Returns a fitted value as float32."""
    shapes = {spec.path: spec.shape for spec in layer.declarations()}
    with np.errstate(over="ignore"):  # too large a value becomes infinite, which is refused below
        array = np.asarray(value, np.float32)
    if name not in shapes or array.shape != shapes[name]:
        raise ParamError(
            f"{layer}: fit returned {name!r} of shape {list(array.shape)}, but the layer declares"
            f" { ({k: list(v) for k, v in shapes.items()}) }"
        )
    if not np.isfinite(array).all():
        raise ParamError(f"{layer}: fit returned {name!r} with values that are not finite")
    return array
