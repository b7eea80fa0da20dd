"""Records the calls of layers' `flops`: each layer's input shape and number of operations.

    with record_flops() as calls:
        task.batch_flops(specs)
    calls[layer]        # the layer's first call

If a layer has no entry, its `flops` was not called: its parent counts the layer's operations in
another way, or not at all.

The record also tells which layers read the same tensor, for the estimate of memory. For this, a
shape object stands for a tensor. The shape that a layer's `output_shape` returns for an input
stands for the layer's output for this input. A new tuple or list stands for a new tensor.

    shape = conv.output_shape(shape)
    norm.flops(shape)           # norm reads the output of conv
    other.flops(tuple(shape))   # other reads another tensor of the same size
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from lingo.layers.layer import Layer


class FlopsCall(NamedTuple):
    """A recorded call of a layer's `flops`: its arguments and its result."""

    shape: Any  # of the first input; a tuple of shapes if the layer takes several tensors
    flops: int  # of one forward call
    # length of the memory that the layer attends to; None: the length in `shape`
    memory_length: int | None = None


class TensorShape(tuple[Any, ...]):
    """The shape of a tensor in a forward pass; its attribute `tensor` numbers the tensor."""

    tensor: int


BATCH = 0
"""The `TensorShape.tensor` of all tensors of the batch, which are arguments of a step."""


class Record(dict["Layer", FlopsCall]):
    """Layer -> first call of its `flops`; also numbers the tensors that layers compute."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(BATCH + 1)
        # (layer, numbers of the input tensors, index of the output) -> number of the output tensor
        self._outputs: dict[Any, int] = {}

    def output(self, layer: Layer, shape: Any, index: int = 0) -> int:
        """Returns the number of a layer's output `index` for an input with the shape `shape`."""
        inputs = tuple(map(tensor_number, list_shapes(shape)))
        key = layer, inputs, index
        return self._outputs.setdefault(key, next(self._numbers))

    def new_tensor(self, shape: Any) -> TensorShape:
        return number_tensor(shape, next(self._numbers))

    def number_outputs(self, layer: Layer, shape: Any, result: Any, *, keeps: bool) -> Any:
        """Returns `result`, which `output_shape` returned, with a number for each tensor in it.

        With `keeps`, a shape that already has a number keeps it.
        """
        indices: dict[int, int] = {}  # by id: a shape object that occurs twice is one tensor

        def number(value: Any) -> Any:
            if not _is_shape(value):
                parts = [number(part) for part in value]
                return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
            if keeps and isinstance(value, TensorShape):
                return value
            index = indices.setdefault(id(value), len(indices))
            return number_tensor(value, self.output(layer, shape, index))

        return number(result)


def number_tensor(shape: Any, number: int) -> TensorShape:
    """Returns the shape `shape` marked as the shape of tensor `number`."""
    numbered = TensorShape(shape)
    numbered.tensor = number
    return numbered


def tensor_number(shape: Any) -> int | None:
    """Returns the number of the tensor that a shape belongs to; None if it is unknown."""
    return shape.tensor if isinstance(shape, TensorShape) else None


def _is_shape(shape: Any) -> bool:
    return not (shape and isinstance(shape[0], Sequence))


def list_shapes(shape: Any) -> list[Any]:
    """Returns a list of the shapes in nested tuples of shapes; a single shape is a list of one."""
    return (
        [shape] if _is_shape(shape) else [single for part in shape for single in list_shapes(part)]
    )


_record: contextvars.ContextVar[Record | None] = contextvars.ContextVar("record", default=None)


@contextlib.contextmanager
def record_flops() -> Iterator[Record]:
    """Records the first call of each layer's `flops` in a `with` block."""
    record = Record()
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


def record_calls(flops: Callable[..., int]) -> Callable[..., int]:
    """Wraps a layer's `flops` to add its calls to the current record, if there is one.

    The wrapper accepts `memory_length` for every layer. It passes `memory_length` on only if the
    layer's `flops` has this parameter and the value is not None.
    """
    takes_memory = "memory_length" in inspect.signature(flops).parameters

    @functools.wraps(flops)
    def call(
        self: Layer, shape: Any, *args: Any, memory_length: int | None = None, **inputs: Any
    ) -> int:
        if takes_memory and memory_length is not None:
            inputs["memory_length"] = memory_length
        number = flops(self, shape, *args, **inputs)
        if (record := _record.get()) is not None:
            record.setdefault(self, FlopsCall(shape, number, memory_length))
        return number

    return call


def record_outputs(output_shape: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a layer's `output_shape`, so that shapes in its result carry tensor numbers.

    Without a current record, the result stays as it is.
    """

    @functools.wraps(output_shape)
    def call(self: Layer, shape: Any) -> Any:
        result = output_shape(self, shape)
        record = _record.get()
        if record is None:
            return result
        keeps = getattr(output_shape, "passes_tensors", False)
        return record.number_outputs(self, shape, result, keeps=keeps)

    return call


def passes_tensors(output_shape: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates an `output_shape` of a layer whose result may be its input or an inner layer's.

    In this case `output_shape` must return the very shape object of that tensor. Any other shape
    object stands for a new tensor.
    """
    vars(output_shape)["passes_tensors"] = True
    return output_shape


def new_tensor(shape: Any) -> Any:
    """Returns a shape for a tensor that no layer computes, such as the sum of two tensors.

    If calls are recorded, the shape gets the number of a new tensor.
    """
    record = _record.get()
    return tuple(shape) if record is None else record.new_tensor(shape)
