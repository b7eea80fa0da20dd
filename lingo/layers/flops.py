"""Records the calls of layers' `flops`: the shape that each layer gets, and its operations.

    with record_flops() as calls:
        task.batch_flops(specs)
    calls[layer]        # its first call

A layer without an entry was not called: its parent counts it in another way, or not at all.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from lingo.layers.layer import Layer


class FlopsCall(NamedTuple):
    """A call of a layer's `flops`."""

    shape: Any  # of the first input; a tuple of shapes if the layer takes several tensors
    flops: int  # of one forward call
    memory_length: int | None = None  # positions of the memory that it attends to; None: of `shape`


Record = dict["Layer", FlopsCall]

_record: contextvars.ContextVar[Record | None] = contextvars.ContextVar("record", default=None)


@contextlib.contextmanager
def record_flops() -> Iterator[Record]:
    """Records the first call of each layer's `flops` in a `with` block."""
    record: Record = {}
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


def record_calls(flops: Callable[..., int]) -> Callable[..., int]:
    """Wraps a layer's `flops` to add its calls to the current record, if there is one.

    It drops a `memory_length` that the layer does not take, and passes none that is None.
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
