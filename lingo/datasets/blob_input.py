"""Solid and hollow balls in noise: volumes to segment, without a download.

    BlobInput.params(split="train", size=16, batch_size=8)

Axes: B examples per batch, N blobs per volume, D depth, H height, W width.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import numpy as np

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.data.array_spec import ArraySpec
from lingo.data.example_input import IndexedInput
from lingo.data.index import Progress
from lingo.data.input import Input
from lingo.ops import random

CLASSES = ("background", "solid", "hollow")
_RADII = (0.14, 0.28)  # least and largest radius of blobs, as shares of the volume's size
_SHELL = 0.65  # radius of a hollow blob's cavity, as a share of the blob's radius
_SMALLEST = 8  # voxels per side; in smaller volumes, cavities vanish
_PROBED = 4  # number of examples whose content identifies how they are drawn


class BlobInput(IndexedInput):
    """Volumes of ellipsoids, brighter than the noise around them, with a label for each voxel.

    An ellipsoid is solid (class 1) or hollow (class 2). A cavity looks like the background (class
    0), but belongs to its ellipsoid, so only the surroundings of a voxel show its class. Where two
    ellipsoids overlap, the later ellipsoid counts. Volumes are functions of split and index, the
    same for all seeds.

    Batches: `images`, float32 [B, D, H, W, 1]; `labels`, int32 [B, D, H, W].
    """

    split: Literal["train", "heldout"] = "train"  # train and heldout share no volume
    size: int = 16  # D, H and W
    num_volumes: int = 4096  # number of volumes in the split
    num_blobs: int = 3  # ellipsoids per volume
    noise: float = 0.5  # standard deviation of uniform noise; blobs are 1 brighter

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_volumes", "num_blobs")
        ranges.check_not_negative(self.p, "noise")
        if self.p.size < _SMALLEST:
            raise ParamError(f"size={self.p.size} is below {_SMALLEST}, where cavities vanish")

    def offers(self) -> dict[str, Any]:
        size = self.p.size
        return {"num_classes": len(CLASSES), "volume_shape": (size, size, size, 1)}

    @property
    def declares_late(self) -> bool:
        return self.p.augment is not None

    def specs(self) -> dict[str, ArraySpec]:
        if self.declares_late:
            return super().specs()
        shape = (self.p.batch_size, *[self.p.size] * 3)
        mine = {"images": ((*shape, 1), "float32"), "labels": (shape, "int32")}
        return Input.specs(self) | mine

    def prepare(self, *, progress: Progress | None = None) -> None:
        del progress  # nothing is read

    def num_examples(self) -> int:
        return self.p.num_volumes

    def read_indices(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        p, size = self.p, self.p.size
        split = random.fold(random.root_key(0), random.text_hash(f"blobs {p.split}"))
        keys = random.fold(split, indices.astype(np.uint32))
        drawn = random.uniform(random.fold(keys, 0), p.num_blobs, 7)  # [B, N, 7]
        noise = random.uniform(random.fold(keys, 1), size, size, size) - 0.5
        images = np.float32(p.noise * 12**0.5) * noise  # noise has standard deviation 12 ** -0.5
        labels = np.zeros(images.shape, np.int32)
        places = (np.moveaxis(np.indices([size] * 3), 0, -1) + 0.5) / size  # [D, H, W, 3]
        low, high = _RADII
        for i, blobs in enumerate(drawn):
            is_bright = np.zeros([size] * 3, bool)
            for blob in blobs:
                radii = low + (high - low) * blob[3:6]
                centre = radii + (1 - 2 * radii) * blob[:3]
                distance = np.linalg.norm((places - centre) / radii, axis=-1)
                inside, is_hollow = distance < 1, blob[6] < 0.5
                is_bright[inside] = (distance[inside] > _SHELL) | (not is_hollow)
                labels[i][inside] = 2 if is_hollow else 1
            images[i] += is_bright
        return {"images": images[..., None], "labels": labels}

    def fingerprint(self) -> dict[str, Any]:
        """Returns the number of volumes, their bytes, and a digest of a few of them."""
        probed = np.unique(np.linspace(0, self.p.num_volumes - 1, _PROBED).astype(int))
        digest = hashlib.sha256()
        for array in self.read_indices(probed).values():
            digest.update(array.tobytes())
        return {
            "source": f"{self.p.split} blobs, {self.p.size} voxels",
            "examples": self.p.num_volumes,
            "bytes": 8 * self.p.num_volumes * self.p.size**3,
            "digest": digest.hexdigest(),
        }
