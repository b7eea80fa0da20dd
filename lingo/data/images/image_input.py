"""Labelled images that fit into memory, split for training and evaluation; and their input.

Axes: N images, B batch, H height, W width, C channels.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingo.config.params import ParamError, Params
from lingo.data.array_spec import ArraySpec
from lingo.data.epoch_order import EpochOrder
from lingo.data.files import DataError
from lingo.data.images.image_file_input import central_squares
from lingo.data.index import Progress
from lingo.data.input import Input
from lingo.data.record_source import Splittable, split_hash

_DIMS = ("height", "width", "channels")


class Labelled(NamedTuple):
    """Images and their classes."""

    images: np.ndarray  # float32 [N, H, W, C], in 0..1
    labels: np.ndarray  # int32 [N], each in 0..num_classes - 1


class LabelledImages(Splittable, interface=True):
    """Images with one class each, in one fixed order; a subclass defines `read`."""

    heldout_fraction: float = 0.2  # share that is held out, chosen by a hash of the image

    image_shape: ClassVar[tuple[int, int, int]]  # (H, W, C), known before the images are read
    num_classes: ClassVar[int]
    class_names: ClassVar[tuple[str, ...]] = ()  # by label, [K]; (): classes have no names

    def read(self) -> Labelled:
        """Reads the images of all splits; raises a LingoError if they are missing."""
        raise NotImplementedError(f"{type(self).__name__} has no read")

    @functools.cached_property
    def arrays(self) -> Labelled:
        """The images of this split; read at first use."""
        images, labels = self.read()
        hashes = [split_hash(image.tobytes()) for image in images]
        is_in_split = self.in_split(np.array(hashes, np.uint64))
        if not is_in_split.any():
            raise DataError(
                f"{self.describe()}: none of the {len(labels)} images is in this split."
                " Give another heldout_fraction."
            )
        return Labelled(images[is_in_split], labels[is_in_split])

    def fingerprint(self) -> dict[str, Any]:
        """Returns what identifies the images of this split: source, number, bytes and digest."""
        images, labels = self.arrays
        digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
        return {
            "source": self.describe(),
            "images": len(images),
            "bytes": images.nbytes,
            "digest": digest,
        }


class ImageInput(Input):
    """Images and their labels, each once per epoch."""

    source: LabelledImages  # where the images come from
    shuffle: bool = True  # a new order each epoch; False: the source's order
    enlarged_to: tuple[int, int, int] | None = None  # (H, W, C), by repeating pixels; None: as is

    def setup(self) -> None:
        self.source = self.p.source.build()
        self.image_shape: tuple[int, int, int] = self.p.enlarged_to or self.source.image_shape
        for dim, large, small in zip(_DIMS, self.image_shape, self.source.image_shape, strict=True):
            if large < small:
                raise ParamError(
                    f"enlarged_to={self.image_shape}: the {dim} is below {small}, the {dim} of"
                    f" {type(self.source).__name__}"
                )

    def offers(self) -> dict[str, Any]:
        return {"num_classes": self.source.num_classes, "image_shape": self.image_shape}

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.source.class_names

    def unlabeled_params(self, path: str) -> Params:
        """Returns the params of an input of the central squares of other images."""
        return central_squares(path, self)

    def prepare(self, *, progress: Progress | None = None) -> None:
        del progress  # the images are few and small
        _ = self.source.arrays

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns `images`, float32 [B, H, W, C] in 0..1, and `labels`, int32 [B].

        After the end of a single pass, images are black, with label 0.
        """
        source, labels = self.source.arrays
        indices, has_content = self._order.indices(numbers), self.p.repeat | (numbers < len(labels))
        images = source[indices] * has_content[:, None, None, None]
        for axis, size in enumerate(self.image_shape, 1):
            images = images.take(_nearest(source.shape[axis], size), axis=axis)
        return {"images": images.astype(np.float32), "labels": labels[indices] * has_content}

    def specs(self) -> dict[str, ArraySpec]:
        size = self.p.batch_size
        mine = {"images": ((size, *self.image_shape), "float32"), "labels": ((size,), "int32")}
        return super().specs() | mine

    def num_examples(self) -> int:
        return len(self.source.arrays.labels)

    def origins(self, numbers: np.ndarray) -> list[str]:
        """Returns the origin of each image, [B]: "2:17" is image 17 of the source, in pass 2."""
        epochs, indices = numbers // self.num_examples(), self._order.indices(numbers)
        return [f"{e}:{i}" for e, i in zip(epochs.tolist(), indices.tolist(), strict=True)]

    def fingerprint(self) -> dict[str, Any]:
        return self.source.fingerprint()

    @functools.cached_property
    def _order(self) -> EpochOrder:
        size, p = self.num_examples(), self.p
        return EpochOrder(size, seed=p.seed, name="images", shuffle=p.shuffle)


def _nearest(small: int, large: int) -> np.ndarray:
    """Returns which of `small` pixels is repeated for each of `large` pixels, int64 [large].

    >>> _nearest(2, 5)
    array([0, 0, 0, 1, 1])
    """
    return np.arange(large) * small // large
