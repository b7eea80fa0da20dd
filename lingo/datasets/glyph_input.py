"""Printed letters and digits, drawn from font files: image data of any size, without a download.

    GlyphInput.params(split="train", size=64, batch_size=32)

Axes: B examples per batch, H height, W width.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.params import ParamError, Params
from lingo.data.example_input import IndexedInput
from lingo.data.images.image_file_input import central_squares
from lingo.data.index import Progress
from lingo.datasets.glyph import Change, draw_glyph, font_size
from lingo.datasets.typeface import CLASSES, Split, list_faces, open_font, read_font
from lingo.ops import random

_SMALLEST, _LARGEST = 32, 224  # pixels
_SHIFT, _SCALE, _SLANT = 0.04, 0.1, 0.15  # largest changes: no ink leaves the image
_PROBED = 16  # number of examples whose content identifies how they are drawn


class Glyph(NamedTuple):
    """What an image shows."""

    face: str  # the name of the font file, without .ttf
    character: str
    label: int


class GlyphInput(IndexedInput):
    """Letters and digits of 22 typefaces, white on black. `pip install 'lingo-tf[data]'`.

    The fonts come with matplotlib. Held-out images use the family Computer Modern, training images
    DejaVu and STIX. There are 47 classes, each with equally many images: 10 digits, 26 capitals
    (each together with its small letter if that looks alike), and 11 other small letters. Letters
    of a face share a baseline and are centred by their ink. Each image has its own shift, scale and
    slant, which are the same for all seeds. The classes are EMNIST Balanced's. Some characters of
    different classes hardly differ, such as I and l of faces without serifs, and the digits of the
    held-out face cmmi10 are old-style ones.

    Batches: `images`, uint8 [B, H, W, 1]; `labels`, int32 [B].
    """

    split: Split = "all"  # train and heldout share no family
    size: int = 32  # H and W, 32 to 224 pixels
    images_per_class: int = 480  # multiples of 96 also balance the faces and cases of a split
    variation: float = 1.0  # strength of shift, scale and slant, from 0 (no variation) to 1

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "images_per_class")
        if not _SMALLEST <= self.p.size <= _LARGEST:
            raise ParamError(f"size={self.p.size} is not from {_SMALLEST} to {_LARGEST} pixels")
        if not 0 <= self.p.variation <= 1:
            raise ParamError(f"variation={self.p.variation} is not from 0 to 1")

    def setup(self) -> None:
        super().setup()
        self.faces = list_faces(self.p.split)
        self._font = functools.cache(lambda face: open_font(face, font_size(self.p.size)))

    def offers(self) -> dict[str, Any]:
        """Returns the classes, and the shape of images that `augment` does not resize."""
        return {
            "num_classes": len(CLASSES),
            "class_names": self.class_names,
            "image_shape": (self.p.size, self.p.size, 1),
        }

    @property
    def class_names(self) -> tuple[str, ...]:
        return CLASSES

    def unlabeled_params(self, path: str) -> Params:
        """Returns the params of an input of the central squares of other images."""
        return central_squares(path, self)

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Opens the fonts; raises MissingPackage without matplotlib, DataError without a font."""
        del progress
        for face in self.faces:
            self._font(face)

    def num_examples(self) -> int:
        return len(CLASSES) * self.p.images_per_class

    def glyph(self, index: int) -> Glyph:
        """Returns the glyph of example `index`; classes change fastest, then faces, then cases."""
        round_, label = divmod(index, len(CLASSES))
        cycle, face = divmod(round_, len(self.faces))
        characters = CLASSES[label]
        return Glyph(self.faces[face], characters[cycle % len(characters)], label)

    def read_indices(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        glyphs = [self.glyph(index) for index in indices.tolist()]
        images = np.zeros([len(glyphs), self.p.size, self.p.size, 1], np.uint8)
        for i, (glyph, change) in enumerate(zip(glyphs, self._changes(indices), strict=True)):
            font = self._font(glyph.face)
            images[i, ..., 0] = draw_glyph(font, glyph.character, size=self.p.size, change=change)
        return {"images": images, "labels": np.array([g.label for g in glyphs], np.int32)}

    def fingerprint(self) -> dict[str, Any]:
        """Returns faces and size, the number of images, the bytes of the fonts, and a digest.

        The digest is of the fonts and a few examples: another Pillow may draw them differently.
        """
        digest, num_bytes, size = hashlib.sha256(), 0, self.num_examples()
        for face in self.faces:
            content = read_font(face)
            digest.update(content)
            num_bytes += len(content)
        probed = np.unique(np.linspace(0, size - 1, _PROBED).astype(int))
        for array in self.read_indices(probed).values():
            digest.update(array.tobytes())
        return {
            "source": f"glyphs of {len(self.faces)} faces, {self.p.size} pixels",
            "examples": size,
            "bytes": num_bytes,
            "digest": digest.hexdigest(),
        }

    def _changes(self, indices: np.ndarray) -> list[Change]:
        """Returns how each image differs from the plain drawing; indices: int64 [B]."""
        key = random.fold(random.root_key(0), random.text_hash(f"glyphs {self.p.split}"))
        drawn = random.uniform(random.fold(key, indices.astype(np.uint32)), 4)
        drawn = self.p.variation * (2.0 * drawn - 1)
        return [
            Change(_SHIFT * dx, _SHIFT * dy, 1 + _SCALE * growth, _SLANT * lean)
            for dx, dy, growth, lean in drawn.tolist()
        ]
