"""Labelled images that fit into memory, and their split into training and held-out images.

Axes: N images, H height, W width, C channels.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingo.data.sources.files import DataError
from lingo.data.splittable import Splittable, split_hash


class Labelled(NamedTuple):
    """Images and their classes.

    Attributes:
        images: float32 [N, H, W, C], in 0..1.
        labels: int32 [N], each in 0..num_classes - 1.
    """

    images: np.ndarray
    labels: np.ndarray


class LabelledImages(Splittable, interface=True):
    """Images with one class each, in one fixed order. A subclass reads them (`read`).

    Attributes:
        image_shape: (H, W, C), known before the images are read.
        num_classes: number of classes, likewise.
    """

    heldout_fraction: float = 0.2  # share that is held out, chosen by a hash of the image

    image_shape: ClassVar[tuple[int, int, int]]
    num_classes: ClassVar[int]

    def read(self) -> Labelled:
        """Reads the images of all splits.

        Raises:
            LingoError: if they are missing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no read")

    @functools.cached_property
    def arrays(self) -> Labelled:
        """The images of this split; read at first use.

        Raises:
            DataError: if the split is empty.
            LingoError: as `read`.
        """
        every = self.read()
        if self.p.split == "all":
            return every
        hashes = [split_hash(image.tobytes()) for image in every.images]
        chosen = self.in_split(np.array(hashes, np.uint64))
        if not chosen.any():
            raise DataError(
                f"{self.describe()}: none of the {len(chosen)} images is in this split."
                " Give another heldout_fraction."
            )
        return Labelled(every.images[chosen], every.labels[chosen])

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
