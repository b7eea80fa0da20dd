"""Checks that the images that an input offers, and delivers, suit a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lingo.config.lazy import tf
from lingo.config.params import ParamError


def check_offers(
    offers: Mapping[str, Any], *, num_classes: int, image_shape: Sequence[int], wanted: str
) -> None:
    """Raises ParamError if an input has no images, more classes than a task, or another shape.

    An input that offers nothing, for example one that reads arrays, passes. Its shapes are known
    when it is read. `wanted` names the kind of input to take if this input has no images.
    """
    if not offers:
        return
    if "image_shape" not in offers:
        raise ParamError(f"the input has no images: take {wanted}")
    if offers["num_classes"] > num_classes:
        raise ParamError(
            f"task.num_classes={num_classes}, but the input has {offers['num_classes']} classes"
        )
    if tuple(offers["image_shape"]) != tuple(image_shape):
        raise ParamError(
            f"task.image_shape={tuple(image_shape)}, but the input has images of"
            f" {tuple(offers['image_shape'])}"
        )


def check_images(
    images: tf.Tensor,
    *,
    field: str,
    shape: Sequence[int],
    advice: str = "where `augment` changes the size of images, give the input the same `size`",
) -> None:
    """Raises ParamError unless images, [B, ...], have the `shape` that a task's `field` sets.

    `augment` may have changed the shape: an input offers the shape before augmentation. `advice`
    ends the message.
    """
    if not images.shape[1:].is_compatible_with(shape):
        raise ParamError(
            f"a batch has images of {tuple(images.shape[1:])}, but the model is built for"
            f" task.{field}={tuple(shape)}, which the input offers: {advice}"
        )
