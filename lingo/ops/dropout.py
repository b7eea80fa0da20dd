"""Dropout whose mask is a function of the example, not of who computes it.

Axes: B batch, T positions, D features.
"""

from __future__ import annotations

import math
from typing import Literal

from lingo.config.lazy import tf
from lingo.ops import random
from lingo.ops.shape import sizes_of

DropoutForm = Literal["element", "feature", "position", "example"]
"""What is dropped together in [B, ..., T, D]: an `element` is dropped by itself (Srivastava et al.
2014); a `feature` at all positions, as in T5 and Lingvo, which needs 1/T of the random numbers; a
`position` with all its features, as words are (Gal and Ghahramani 2016, sec. 4.2); or an `example`
with all it has: around a residual, that is stochastic depth (Huang et al. 2016)."""


def dropout(
    x: tf.Tensor,
    *,
    rate: float,
    key: random.Key,
    rows: tf.Tensor,
    form: DropoutForm = "element",
) -> tf.Tensor:
    """Zeroes parts of a tensor, each with probability `rate`, and scales up the rest.

    Whether a part is zeroed depends on the key, on its example's row and on its place in the
    example: the same in any micro-batch, on any replica, with and without XLA.

    Args:
        x: [B, ...], any float type; [B, ..., T, D] for features and positions.
        rate: in [0, 1).
        key: of the layer in this step.
        rows: int32 or uint32 [B], the global index of each example in the step's batch.
        form: what the parts are.

    Returns:
        The shape and type of `x`; each element's mean over keys is the element.

    Raises:
        ValueError: if `x` has not the axes of the form.
    """
    if form in ("feature", "position") and len(x.shape) < 3:
        raise ValueError(f"{form=} needs [B, ..., T, D], got {x.shape}")
    drawn = sizes_of(x)[1:]
    for axis in {"element": [], "feature": [-2], "position": [-1]}.get(form, range(len(drawn))):
        drawn[axis] = 1
    # the words whose upper 24 bits, as a fraction, are at least the rate
    first = math.ceil(rate * 2**24) << 8
    keep = random.bits(random.fold(key, rows), *drawn) >= tf.constant(first, tf.uint32)
    scaled = tf.cast(tf.cast(x, tf.float32) / (1.0 - rate), x.dtype)
    return tf.where(keep, scaled, tf.zeros([], x.dtype))
