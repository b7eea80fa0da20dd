"""Sums of several tensors that have the same bits in every run."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Generator, Sequence
from typing import Any

from lingo.config.lazy import tf

_is_on = contextvars.ContextVar("add_in_order", default=False)


@contextlib.contextmanager
def add_in_order() -> Generator[None]:
    """Makes TensorFlow add three or more tensors from left to right inside, also in gradients.

    TensorFlow's AddN starts with the first input that no other operation still needs, and adds the
    rest into its memory. Which input this is depends on which threads are faster, and so do the
    order of the terms and the last bits of the sum. `enable_op_determinism` does not change that.
    AddN also sums the gradients of a tensor with several uses. TensorFlow creates every AddN in one
    function, which is replaced here.

    >>> with add_in_order():
    ...     float(tf.add_n([tf.constant(1e8), tf.constant(-1e8), tf.constant(1.0)]))
    1.0
    """
    _replace_add_n()
    token = _is_on.set(True)
    try:
        yield
    finally:
        _is_on.reset(token)


@functools.cache  # once in a process, as other threads may trace at the same time
def _replace_add_n() -> None:
    from tensorflow.python.ops import gen_math_ops

    add_n = gen_math_ops.add_n

    def add(inputs: Sequence[Any], name: str | None = None) -> Any:
        if len(inputs) < 3 or not _is_on.get():  # the order of two makes no difference
            return add_n([*inputs], name=name)
        return functools.reduce(lambda total, term: tf.raw_ops.AddV2(x=total, y=term), inputs)

    gen_math_ops.add_n = add
