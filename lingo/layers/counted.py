"""What layers are asked while operations are counted: which shape came to which layer.

    with counted.recorded() as found:
        task.batch_flops(specs)
    found[layer]        # every call of its `flops`, in the order in which they were answered

A layer that is not there was not asked: its parent counts it in another way, or not at all.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from lingo.layers.layer import Layer


class Answer(NamedTuple):
    """One call of a layer's `flops`.

    Attributes:
        shape: of the first input; tuples of shapes where a layer takes several tensors.
        flops: of a forward call.
    """

    shape: Any
    flops: int


Answers = dict["Layer", list[Answer]]

_answers: contextvars.ContextVar[Answers | None] = contextvars.ContextVar("answers", default=None)


@contextlib.contextmanager
def record_flops() -> Iterator[Answers]:
    """Records what layers of any tree are asked inside; an inner record takes it all."""
    found: Answers = {}
    token = _answers.set(found)
    try:
        yield found
    finally:
        _answers.reset(token)


def recording_flops(flops: Callable[..., int]) -> Callable[..., int]:
    """Returns a layer's `flops` that leaves its answers in a record, if there is one."""

    @functools.wraps(flops)
    def asked(self: Layer, shape: Any, *args: Any, **inputs: Any) -> int:
        number = flops(self, shape, *args, **inputs)
        if (found := _answers.get()) is not None:
            found.setdefault(self, []).append(Answer(shape, number))
        return number

    return asked
