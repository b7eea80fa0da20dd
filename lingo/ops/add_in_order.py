"""Makes sums of several tensors bitwise reproducible from run to run."""

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
    """Inside this context, TensorFlow sums tensors from left to right, also in gradients.

    TensorFlow's AddN starts with the first input that no other operation still needs, and adds the
    other inputs into the memory of that input. Which input comes first depends on the speed of
    threads, and with it the order of the terms and the last bits of the sum.
    `enable_op_determinism` does not change that. AddN also sums the gradients of a tensor with
    several uses. TensorFlow creates every AddN in a single function, and this module replaces that
    function.

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


@functools.cache  # once per process: other threads may trace at the same time
def _replace_add_n() -> None:
    from tensorflow.python.ops import gen_math_ops

    add_n = gen_math_ops.add_n

    def add(inputs: Sequence[Any], name: str | None = None) -> Any:
        if len(inputs) < 3 or not _is_on.get():  # two terms have the same sum in either order
            return add_n([*inputs], name=name)
        return functools.reduce(lambda total, term: tf.raw_ops.AddV2(x=total, y=term), inputs)

    gen_math_ops.add_n = add
