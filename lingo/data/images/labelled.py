"""Labelled images that fit into memory, and their split into training and held-out images.

Axes: N images, H height, W width, C channels.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingo.data.files import DataError
from lingo.data.splittable import Splittable, split_hash


class Labelled(NamedTuple):
    """Images and their classes."""

    images: np.ndarray  # float32 [N, H, W, C], in 0..1
    labels: np.ndarray  # int32 [N], each in 0..num_classes - 1


class LabelledImages(Splittable, interface=True):
    """Images with one class each, in one fixed order. A subclass reads them (`read`)."""

    heldout_fraction: float = 0.2  # share that is held out, chosen by a hash of the image

    image_shape: ClassVar[tuple[int, int, int]]  # (H, W, C), known before the images are read
    num_classes: ClassVar[int]

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
