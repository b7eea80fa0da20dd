"""MixUp and CutMix: mixtures of pairs of labelled images.

Each image is mixed with its partner's, and so are the labels. Unless partners are given, the
partner of example i in a batch is example i - 1, as in big_vision; the first example's partner is
the last example. So results then depend on the split of the batch: if each micro-batch, replica or
process mixes its own part of the batch, the first example of a part has another partner than in the
whole batch. With given partners, results do not depend on the split. Weights and rectangles never
depend on it, because each example has its own random key. All functions use NumPy.

Axes: B examples, H height, W width, C channels, K classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lingo.ops import random
from lingo.ops.image.pixel import check_values, draw


class LabelledBatch(NamedTuple):
    """Images with the shares of their classes."""

    images: np.ndarray  # [B, H, W, C], uint8, or float32 in 0..1
    labels: np.ndarray  # float32 [B, K], the share of each class


def mixup(
    batch: LabelledBatch,
    keys: random.Key,
    *,
    alpha: float = 0.2,
    partners: LabelledBatch | None = None,
) -> LabelledBatch:
    """Blends each example with its partner (Zhang et al. 2018).

    The weight of an example is the larger of w and 1 - w, where w is drawn from Beta(alpha, alpha).
    Its partner's weight is the smaller of the two. In the paper the weight is w itself.

    Args:
        batch: images and labels.
        keys: the examples' random keys, with fields [B], as `random.fold(key, numbers)` returns
            them.
        alpha: above 0; near 0, almost nothing is mixed.
        partners: the examples' partners, in the same shapes and types; None: the previous example.

    Returns:
        The shapes and types of `batch`; uint8 is rounded.

    Raises:
        ValueError: if shapes or types are wrong, or for `alpha` out of range.

    >>> batch = LabelledBatch(np.uint8([0, 200]).reshape(2, 1, 1, 1), np.eye(2, dtype="f"))
    >>> images, labels = mixup(batch, random.fold(random.root_key(0), np.arange(2)), alpha=1)
    >>> images.ravel()
    array([  6, 134], dtype=uint8)
    >>> labels.round(3)
    array([[0.971, 0.029],
           [0.331, 0.669]], dtype=float32)
    """
    partners = _partners(batch, keys, partners)
    weights = symmetric_beta(keys, alpha, name="mixup")
    weights = np.maximum(weights, 1 - weights).astype(np.float32)
    images = _blend(batch.images, partners.images, weights)
    if images.dtype != batch.images.dtype:
        images = np.rint(images)
    return LabelledBatch(
        images.astype(batch.images.dtype), _blend(batch.labels, partners.labels, weights)
    )


def cutmix(
    batch: LabelledBatch,
    keys: random.Key,
    *,
    alpha: float = 1.0,
    partners: LabelledBatch | None = None,
) -> LabelledBatch:
    """Replaces a rectangle of each image by its partner's rectangle (Yun et al. 2019, sec. 3.1).

    The rectangle has the image's aspect ratio, and its middle is any pixel of the image. Its area
    is 1 - w of the image's area, where w is drawn from Beta(alpha, alpha), unless it is cut off at
    the edges. The labels' weights are the fractions of the area that the two images have in the
    result.

    Args:
        batch: images and labels.
        keys: the examples' random keys, with fields [B], as `random.fold(key, numbers)` returns
            them.
        alpha: above 0; 1: all areas are equally likely.
        partners: the examples' partners, in the same shapes and types; None: the previous example.

    Returns:
        The shapes and types of `batch`.

    Raises:
        ValueError: if shapes or types are wrong, or for `alpha` out of range.

    >>> images = np.repeat(np.uint8([1, 2]), 9).reshape(2, 3, 3, 1)
    >>> batch = LabelledBatch(images, np.eye(2, dtype="f"))
    >>> images, labels = cutmix(batch, random.fold(random.root_key(0), np.arange(2)))
    >>> images[0, ..., 0]
    array([[1, 1, 1],
           [2, 2, 1],
           [2, 2, 1]], dtype=uint8)
    >>> labels[0].round(3)
    array([0.556, 0.444], dtype=float32)
    """
    partners = _partners(batch, keys, partners)
    sides = np.sqrt(1 - symmetric_beta(keys, alpha, name="cutmix"))
    places = draw(keys, "cutmix.place", 2)
    rows, columns = (
        _coverage(size, sides, places[:, i]) for i, size in enumerate(batch.images.shape[1:3])
    )
    is_replaced = rows[:, :, None] & columns[:, None, :]
    weights = 1 - is_replaced.mean(axis=(1, 2), dtype=np.float64)
    return LabelledBatch(
        np.where(is_replaced[..., None], partners.images, batch.images),
        _blend(batch.labels, partners.labels, weights.astype(np.float32)),
    )


def symmetric_beta(keys: random.Key, alpha: float, *, name: str) -> np.ndarray:
    """Returns numbers from Beta(alpha, alpha): float64, of the shape of the keys, in 0..1.

    A number is 1/2 + t / (2 sqrt(2 alpha + t^2)), where t has Student's distribution with 2 alpha
    degrees of freedom and comes from two uniform numbers (Bailey 1994).

    Args:
        keys: random keys; their fields have any shape.
        alpha: above 0.
        name: name of the calling function; random numbers depend on it.

    Raises:
        ValueError: for `alpha` out of range.

    >>> keys = random.fold(random.root_key(0), np.arange(4))
    >>> symmetric_beta(keys, 0.2, name="mixup").round(3)
    array([0.   , 0.882, 0.064, 0.56 ])
    """
    if not 0 < alpha < np.inf:
        raise ValueError(f"{alpha=} is not above 0")
    uniform, angle = np.moveaxis(draw(keys, name, 2), -1, 0)
    tail = (1 - uniform) ** (1 / alpha)  # in 0..1, so that nothing overflows for small alpha
    cosine = np.cos(2 * np.pi * angle)
    square = cosine**2 * (1 - tail)
    return (1 + np.sign(cosine) * np.sqrt(square / (square + tail))) / 2


def _coverage(size: int, sides: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns which of the `size` pixels of an image's side a part covers, bool [B, size].

    `sides`, [B], are the parts' lengths, and `places`, [B], the positions of their middle pixels,
    both as fractions of the image's side.
    """
    lengths = np.rint(size * sides).astype(np.int64)
    first = (places * size).astype(np.int64) - lengths // 2
    pixels = np.arange(size) - first[:, None]
    return (pixels >= 0) & (pixels < lengths[:, None])


def _blend(first: np.ndarray, second: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns weights * first + (1 - weights) * second, float32; weights are float32 [B]."""
    weights = weights.reshape(-1, *[1] * (first.ndim - 1))
    return weights * first + (1 - weights) * second


def _partners(
    batch: LabelledBatch, keys: random.Key, partners: LabelledBatch | None
) -> LabelledBatch:
    """Returns the partner of each example; raises ValueError if shapes or types do not match."""
    images, labels = batch
    check_values(images, "[B, H, W, C]")
    if labels.ndim != 2 or len(labels) != len(images) or labels.dtype != np.float32:
        raise ValueError(
            f"labels of {len(images)} images are float32 [{len(images)}, K], the share of each"
            f" class; these are {labels.dtype} {list(labels.shape)}: np.eye(K, dtype='float32')"
            "[labels] makes them from class numbers"
        )
    if np.shape(keys.high) != (len(images),):
        raise ValueError(
            f"{len(images)} images need as many keys, but keys are {list(np.shape(keys.high))}:"
            " random.fold(key, numbers) makes one for each number"
        )
    if partners is None:
        return LabelledBatch(np.roll(images, 1, axis=0), np.roll(labels, 1, axis=0))
    for name, own, other in zip(LabelledBatch._fields, batch, partners, strict=True):
        if (own.shape, own.dtype) != (other.shape, other.dtype):
            raise ValueError(
                f"{name} of partners are {other.dtype} {list(other.shape)}, but the batch's are"
                f" {own.dtype} {list(own.shape)}: give both the same shape and type"
            )
    return partners
