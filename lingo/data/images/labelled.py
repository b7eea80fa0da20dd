"""Labelled images that fit into memory, and their split into training and held-out images.

Axes: N images, H height, W width, C channels.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from lingo.config.params import Configurable, ParamError, fields
from lingo.data.sources.files import DataError


class Labelled(NamedTuple):
    """Images and what they show.

    Attributes:
        images: float32 [N, H, W, C], in 0..1.
        labels: int32 [N], each below the number of classes.
    """

    images: np.ndarray
    labels: np.ndarray


class LabelledImages(Configurable, kind=True):
    """Images with a class each, in one fixed order. A subclass reads them (`read`).

    Attributes:
        image_shape: (H, W, C), known before they are read.
        num_classes: number of labels, likewise.
    """

    split: Literal["all", "train", "heldout"] = "all"  # train and heldout share no image
    heldout_fraction: float = 0.2  # share that is held out, chosen by a hash of the image

    image_shape: ClassVar[tuple[int, int, int]]
    num_classes: ClassVar[int]

    def check(self) -> None:
        if not 0 < self.p.heldout_fraction < 1:
            raise ParamError(f"heldout_fraction={self.p.heldout_fraction} is not between 0 and 1.")

    def read(self) -> Labelled:
        """Reads all images.

        Raises:
            LingoError: if they are not there.
        """
        raise NotImplementedError(f"{type(self).__name__} has no read")

    def describe(self) -> str:
        """Returns what the images are, in one line: the class, and the fields that are set."""
        values = {name: getattr(self.p, name) for name in fields(self.p.cls)}
        given = [f"{n}={v!r}" for n, v in values.items() if v != fields(self.p.cls)[n].default]
        return f"{type(self).__name__}({', '.join(given)})"

    @functools.cached_property
    def loaded(self) -> Labelled:
        """The images of this split; read at first use.

        Raises:
            DataError: if there is none.
            LingoError: as `read`.
        """
        every = self.read()
        if self.p.split == "all":
            return every
        limit = np.uint64(self.p.heldout_fraction * 2.0**64)
        hashes = np.array([_hash(image) for image in every.images], np.uint64)
        chosen = (hashes < limit) == (self.p.split == "heldout")
        if not chosen.any():
            raise DataError(
                f"{self.describe()}: none of the {len(chosen)} images is in this split."
                " Give another heldout_fraction."
            )
        return Labelled(every.images[chosen], every.labels[chosen])

    def fingerprint(self) -> dict[str, Any]:
        """Returns what identifies the images of this split: source, number, bytes, digest."""
        images, labels = self.loaded
        digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
        return {
            "source": self.describe(),
            "images": len(images),
            "bytes": images.nbytes,
            "digest": digest,
        }


def _hash(image: np.ndarray) -> int:
    return int.from_bytes(hashlib.sha256(image.tobytes()).digest()[:8], "big")
