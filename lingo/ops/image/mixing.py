"""Pairs of labelled images, mixed: MixUp and CutMix.

An example is mixed with a partner, and so are their labels. Unless partners are given, that of
example i of a batch is example i - 1, as in big_vision; that of the first is the last. Then a
result depends on which examples are together: the first example of each part of a batch has another
partner than in the whole batch, if micro-batches, replicas or processes mix parts. With partners
given, a result does not depend on the split, nor do weights and rectangles ever, since each example
has a key of its own. NumPy, on the host.

Axes: B examples, H height, W width, C channels, K classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lingo.ops import random
from lingo.ops.image.pixel import check_values, draw


class LabelledBatch(NamedTuple):
    """Images and what they show."""

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

    The weight of an example is the larger one of w and 1 - w, where w is drawn from Beta(alpha,
    alpha); its partner has the rest. In the paper it is w itself.

    Args:
        batch: images and labels.
        keys: of the examples, words of shape [B], as `random.fold(key, numbers)` makes them.
        alpha: above 0; near 0, almost nothing is mixed.
        partners: of the examples, in the same shapes and types; None: the example before each.

    Returns:
        The shapes and types of `batch`; uint8 is rounded.

    Raises:
        ValueError: if shapes or types differ from these, or for `alpha` out of range.

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
    """Replaces a rectangle of each image by that of its partner (Yun et al. 2019, sec. 3.1).

    The rectangle has the form of the image, and its middle is any of its pixels. It has the part
    1 - w of the area, where w is drawn from Beta(alpha, alpha), unless it is cut off at the edges.
    The weights of the labels are the parts of the area that images really have.

    Args:
        batch: images and labels.
        keys: of the examples, words of shape [B], as `random.fold(key, numbers)` makes them.
        alpha: above 0; 1: all areas are equally likely.
        partners: of the examples, in the same shapes and types; None: the example before each.

    Returns:
        The shapes and types of `batch`.

    Raises:
        ValueError: if shapes or types differ from these, or for `alpha` out of range.

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

    They are 1/2 + t / (2 sqrt(2 alpha + t^2)) of numbers t from Student's distribution with
    2 alpha degrees of freedom, which come from two uniform numbers each (Bailey 1994).

    Args:
        keys: words of any shape.
        alpha: above 0.
        name: of the function that draws.

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
    """Returns which of `size` pixels a part of relative length `sides` covers, bool [B, size].

    Its middle is the pixel at the relative place `places`, both [B].
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
    """Returns the partners of a batch's examples; raises ValueError for other shapes or types."""
    images, labels = batch
    check_values(images, "[B, H, W, C]")
    if labels.ndim != 2 or len(labels) != len(images) or labels.dtype != np.float32:
        raise ValueError(
            f"labels of {len(images)} images are float32 [{len(images)}, K], the share of each"
            f" class; these are {labels.dtype} {list(labels.shape)}: np.eye(K, dtype='float32')"
            "[labels] makes them of numbers of classes"
        )
    if np.shape(keys.high) != (len(images),):
        raise ValueError(
            f"{len(images)} images need as many keys, but these are {list(np.shape(keys.high))}:"
            " random.fold(key, numbers) makes one for each number"
        )
    if partners is None:
        return LabelledBatch(np.roll(images, 1, axis=0), np.roll(labels, 1, axis=0))
    for name, own, other in zip(LabelledBatch._fields, batch, partners, strict=True):
        if (own.shape, own.dtype) != (other.shape, other.dtype):
            raise ValueError(
                f"{name} of partners are {other.dtype} {list(other.shape)}, those of the batch"
                f" {own.dtype} {list(own.shape)}"
            )
    return partners
