"""Dropout whose mask is a function of the example, not of who computes it.

Axes: B batch.
"""

from __future__ import annotations

from lingo.lazy import tf
from lingo.ops import random


def dropout(x: tf.Tensor, *, rate: float, key: random.Key, rows: tf.Tensor) -> tf.Tensor:
    """Zeroes each element with probability `rate` and scales up the rest (Srivastava et al. 2014).

    Whether an element is zeroed depends on the key, on its example's row and on its place in the
    example: the same in any micro-batch, on any replica, with and without XLA.

    Args:
        x: [B, ...], any float type.
        rate: in [0, 1).
        key: of the layer in this step.
        rows: int32 or uint32 [B], the global index of each example in the step's batch.

    Returns:
        The shape and type of `x`; each element's mean over keys is the element.
    """
    known, asked = x.shape[1:], tf.shape(x)[1:]
    sizes = [asked[i] if size is None else size for i, size in enumerate(known)]
    keep = random.uniform(random.fold(key, rows), *sizes) >= rate
    return tf.where(keep, x / (1.0 - rate), tf.zeros([], x.dtype))
