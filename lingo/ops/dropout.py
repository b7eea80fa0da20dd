"""Dropout whose mask depends on the example, not on the replica or micro-batch it is in.

Axes: B batch, T positions, D features.
"""

from __future__ import annotations

import math
from typing import Literal

from lingo.config.lazy import tf
from lingo.ops import random
from lingo.ops.shape import sizes_of

DropoutForm = Literal["element", "feature", "position", "example"]
"""What is dropped together in [B, ..., T, D]. `element`: each element by itself (Srivastava et al.
2014). `feature`: a feature at all positions, as in T5 and Lingvo; it needs 1/T of the random
numbers. `position`: a position with all its features, as in word dropout (Gal and Ghahramani 2016,
sec. 4.2). `example`: a whole example; on a residual branch, this is stochastic depth (Huang et al.
2016)."""


def dropout(
    x: tf.Tensor,
    *,
    rate: float,
    key: random.Key,
    rows: tf.Tensor,
    form: DropoutForm = "element",
    part: random.Part | None = None,
) -> tf.Tensor:
    """Zeroes parts of a tensor, each with probability `rate`, and divides the rest by 1 - rate.

    Whether a part is zeroed depends only on the key, on the id of its example and on its index in
    the example. So the mask is the same in any micro-batch, on any replica, with and without XLA.

    Args:
        x: [B, ...], any float type; [B, ..., T, D] for the forms `feature` and `position`.
        rate: in [0, 1).
        key: scalar key of the layer in this step.
        rows: int32 or uint32 [B], the id of each example: its index in the step's global batch.
        form: which elements are dropped together.
        part: if `x` is a part of a larger tensor, along the last two axes: which part. `x` then
            gets this part of the larger tensor's mask. None: `x` is the whole tensor.

    Returns:
        The shape and type of `x`. Averaged over keys, each element equals the element of `x`.

    Raises:
        ValueError: if `x` lacks the axes that the form needs.

    >>> x, key = tf.ones([2, 4]), random.root_key(0)
    >>> dropout(x, rate=0.5, key=key, rows=tf.constant([0, 1])).numpy()
    array([[2., 2., 0., 2.],
           [2., 2., 2., 0.]], dtype=float32)
    >>> dropout(x[:1], rate=0.5, key=key, rows=tf.constant([1])).numpy()  # example 1 alone
    array([[2., 2., 2., 0.]], dtype=float32)
    """
    if form in ("feature", "position") and len(x.shape) < 3:
        raise ValueError(f"{form=} needs [B, ..., T, D], got {x.shape}")
    drawn = sizes_of(x)[1:]
    for axis in {"element": [], "feature": [-2], "position": [-1]}.get(form, range(len(drawn))):
        drawn[axis] = 1
        if part is not None and axis in (-2, -1, len(drawn) - 2, len(drawn) - 1):
            part = _share_axis(part, axis if axis < 0 else axis - len(drawn))
    # an element is kept if the upper 24 bits of its random number, as a fraction, are at least the
    # rate
    first = math.ceil(rate * 2**24) << 8
    words = random.bits(random.fold(key, rows), *drawn, part=part)
    keep = words >= tf.constant(first, tf.uint32)
    scaled = tf.cast(tf.cast(x, tf.float32) / (1.0 - rate), x.dtype)
    return tf.where(keep, scaled, tf.zeros([], x.dtype))


def _share_axis(part: random.Part, axis: int) -> random.Part:
    """Returns `part` with start 0 and size 1 along an axis, so that the mask is shared along it."""
    starts, sizes = list(part.starts), list(part.sizes)
    starts[axis], sizes[axis] = 0, 1
    return random.Part(tuple(starts), tuple(sizes))
