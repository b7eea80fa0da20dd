"""Records the calls of layers' `flops`: the shape that each layer gets, and its operations.

    with counted.record_flops() as answers:
        task.batch_flops(specs)
    answers[layer]      # every call of its `flops`, in the order in which they returned

A layer without an entry was not called: its parent counts it in another way, or not at all.
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
        shape: shape of the first input; a tuple of shapes if the layer takes several tensors.
        flops: operations of one forward call.
    """

    shape: Any
    flops: int


Answers = dict["Layer", list[Answer]]

_answers: contextvars.ContextVar[Answers | None] = contextvars.ContextVar("answers", default=None)


@contextlib.contextmanager
def record_flops() -> Iterator[Answers]:
    """Records all calls of `flops` in a `with` block; a nested record takes its block's calls."""
    found: Answers = {}
    token = _answers.set(found)
    try:
        yield found
    finally:
        _answers.reset(token)


def recording_flops(flops: Callable[..., int]) -> Callable[..., int]:
    """Wraps a layer's `flops` so that it adds its result to the current record, if any."""

    @functools.wraps(flops)
    def asked(self: Layer, shape: Any, *args: Any, **inputs: Any) -> int:
        number = flops(self, shape, *args, **inputs)
        if (found := _answers.get()) is not None:
            found.setdefault(self, []).append(Answer(shape, number))
        return number

    return asked
