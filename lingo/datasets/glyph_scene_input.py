"""Scenes of letters and digits over photographs, for detection: any number, without a download.

    GlyphSceneInput.params(split="train", size=128, batch_size=32)

Axes: B examples per batch, H height, W width, N boxes per image, M bins of a mask along each side,
K runs of a mask.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.data.example_input import IndexedInput
from lingo.data.index import Progress
from lingo.datasets.glyph import Change, draw_glyph, font_size
from lingo.datasets.photographs import NAMES, cut_split, read_photograph
from lingo.datasets.typeface import CLASSES, Split, list_faces, open_font, read_font
from lingo.metrics.mask import run_lengths, write_run_lengths
from lingo.ops import random
from lingo.ops.image.boxed_image import sample_mask
from lingo.ops.image.pixel import draw

_SMALLEST, _LARGEST = 32, 2048  # pixels
_INK_SIZE = 128  # pixels of the drawing that is resized to glyphs of all sizes
_STRETCH = 0.15  # largest share by which a glyph is wider or narrower
# longer side of a photograph's part, in pixels; held-out parts have 160 columns
_WINDOW = (64, 160)
_TRIES = 10  # positions that are tried for a glyph
_VISIBLE = 64  # least ink of a pixel, of 255: rows and columns at the rim with less are cut off
_NEAR = 0.3  # share of levels that a glyph may have: the darkest; on dark ground, the lightest
_PROBED = 16  # number of examples whose content identifies how they are drawn


class _Draws(NamedTuple):
    """The random numbers of a scene, in 0..1."""

    window: np.ndarray  # [4]: photograph, side, row, column
    num_glyphs: np.ndarray  # []
    glyphs: np.ndarray  # [N, 8]: class, case, face, height, stretch, colour
    places: np.ndarray  # [N, tries, 2]: row, column


class GlyphSceneInput(IndexedInput):
    """Letters and digits of several sizes over photographs. `pip install 'lingo-tf[data]'`.

    A scene has 1 to `max_boxes` glyphs, each with its own class, typeface, size, width and colour.
    Glyphs do not overlap; a glyph for which no position is found is left out. Held-out scenes have
    the family Computer Modern, training scenes DejaVu and STIX, over other parts of the two
    photographs that come with scikit-learn. A box is the smallest rectangle around all pixels with
    a quarter of ink or more; nothing is drawn outside the box. Scenes are the same for all seeds.

    Batches: `images`, uint8 [B, H, W, 3]; `boxes`, float32 [B, N, 4], as (top, left, bottom, right)
    in 0..1 of the image; `box_labels`, int32 [B, N], in 1..num_classes, and 0 for no box. With
    `mask_size`, `masks`, uint8 [B, N, M, M]: the pixels with a quarter of ink or more, at the
    centres of the bins of each box. With `max_runs`, `mask_counts`, int32 [B, N, K]: the same
    pixels of the whole image as COCO's run lengths, zeros at the end, for average precisions.
    """

    split: Split = "all"  # train and heldout share neither a family nor a pixel of a photograph
    size: int = 128  # H, 32 to 2048 pixels
    width: int | None = None  # W, 32 to 2048 pixels; None: `size`
    num_scenes: int = 4096  # per epoch
    num_classes: int = 10  # the first of GlyphInput's classes: 10 are the digits, 47 are all
    max_boxes: int = 6  # N
    min_height: float = 0.12  # least height of a glyph, as a share of H
    max_height: float = 0.5  # largest height of a glyph, as a share of H; log(height) is uniform
    mask_size: int | None = None  # M; None: no masks
    max_runs: int | None = None  # K; a glyph with more runs is an error; None: no run lengths

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_positive(p, "num_scenes", "max_boxes", "num_classes", "mask_size", "max_runs")
        for field, side in (("size", p.size), ("width", p.width)):
            if side is not None and not _SMALLEST <= side <= _LARGEST:
                raise ParamError(f"{field}={side} is not from {_SMALLEST} to {_LARGEST} pixels")
        if p.num_classes > len(CLASSES):
            raise ParamError(f"num_classes={p.num_classes}, but glyphs have {len(CLASSES)} classes")
        if not 8 / p.size <= p.min_height <= p.max_height <= 0.7:
            raise ParamError(
                f"min_height={p.min_height} and max_height={p.max_height} are not"
                f" {8 / p.size:g} <= min_height <= max_height <= 0.7: reading takes 8 pixels"
            )

    def setup(self) -> None:
        super().setup()
        self.faces = list_faces(self.p.split)
        self._font = functools.cache(lambda face: open_font(face, font_size(_INK_SIZE)))
        self._ink = functools.cache(self._draw_ink)
        self._photographs = functools.cache(self._read_photographs)

    def offers(self) -> dict[str, Any]:
        """Returns the classes, not counting "no box", and the shape of images."""
        return {
            "num_classes": self.p.num_classes,
            "class_names": self.class_names,
            "image_shape": (*self._size, 3),
        }

    @property
    def _size(self) -> tuple[int, int]:
        """(H, W), in pixels."""
        return self.p.size, self.p.width or self.p.size

    @property
    def class_names(self) -> tuple[str, ...]:
        """The characters of labels 1..K, [K]."""
        return CLASSES[: self.p.num_classes]

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Opens fonts and photographs; raises MissingPackage without them, DataError if damaged."""
        del progress
        self._photographs()
        for face in self.faces:
            self._font(face)

    def num_examples(self) -> int:
        return self.p.num_scenes

    def read_indices(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        p = self.p
        batch = {
            "images": np.empty([len(indices), *self._size, 3], np.uint8),
            "boxes": np.zeros([len(indices), p.max_boxes, 4], np.float32),
            "box_labels": np.zeros([len(indices), p.max_boxes], np.int32),
        }
        if (bins := p.mask_size) is not None:
            batch["masks"] = np.zeros([len(indices), p.max_boxes, bins, bins], np.uint8)
        if p.max_runs is not None:
            batch["mask_counts"] = np.zeros([len(indices), p.max_boxes, p.max_runs], np.int32)
        for i, draws in enumerate(self._draws(indices)):
            batch["images"][i] = self._background(draws)
            scene = {name: array[i] for name, array in batch.items()}
            self._draw_glyphs(draws, scene)
        batch["boxes"] /= np.tile(self._size, 2)
        return batch

    def fingerprint(self) -> dict[str, Any]:
        """Returns the number of scenes, the bytes of fonts and photographs, and a digest.

        The digest is of fonts, photographs and a few examples, which another Pillow may draw
        differently.
        """
        contents = [read_font(face) for face in self.faces]
        contents += [photograph.tobytes() for photograph in self._photographs()]
        digest = hashlib.sha256(b"".join(contents))
        num, sides = self.num_examples(), " x ".join(map(str, dict.fromkeys(self._size)))
        probed = np.unique(np.linspace(0, num - 1, _PROBED).astype(int))
        for array in self.read_indices(probed).values():
            digest.update(array.tobytes())
        return {
            "source": f"scenes of glyphs of {len(self.faces)} faces, {sides} pixels",
            "examples": num,
            "bytes": sum(map(len, contents)),
            "digest": digest.hexdigest(),
        }

    def _draws(self, indices: np.ndarray) -> list[_Draws]:
        """Returns the random numbers of the split's scenes with these indices, int64 [B]."""
        key = random.fold(random.root_key(0), random.text_hash(f"scenes {self.p.split}"))
        keys, num = random.fold(key, indices.astype(np.uint32)), self.p.max_boxes
        sizes = {"window": [4], "num_glyphs": [], "glyphs": [num, 8], "places": [num, _TRIES, 2]}
        arrays = [draw(keys, name, *sizes[name]) for name in _Draws._fields]
        return [_Draws(*scene) for scene in zip(*arrays, strict=True)]

    def _background(self, draws: _Draws) -> np.ndarray:
        """Returns a part of a photograph, uint8 [H, W, 3]."""
        photographs = self._photographs()
        which, side, row, column = draws.window.tolist()
        photograph = photographs[int(which * len(photographs))]
        side = _interpolate(side, *_WINDOW) / max(self._size)
        height, width = (round(side * pixels) for pixels in self._size)
        row = int(row * (photograph.shape[0] - height + 1))
        column = int(column * (photograph.shape[1] - width + 1))
        part = Image.fromarray(photograph[row : row + height, column : column + width])
        return np.asarray(part.resize((self._size[1], self._size[0]), Image.Resampling.BILINEAR))

    def _draw_glyphs(self, draws: _Draws, scene: dict[str, np.ndarray]) -> None:
        """Draws glyphs into a scene's arrays, {name: [...]}; its boxes are in pixels."""
        p, num = self.p, 0
        boxes = scene["boxes"]
        for i in range(1 + int(draws.num_glyphs * p.max_boxes)):
            class_, case, face, height, stretch, *colour = draws.glyphs[i].tolist()
            label = int(class_ * p.num_classes)
            characters = CLASSES[label]
            ink = _resize_ink(
                self._ink(
                    self.faces[int(face * len(self.faces))],
                    characters[int(case * len(characters))],
                ),
                height=p.size * p.min_height * (p.max_height / p.min_height) ** height,
                stretch=_interpolate(stretch, 1 - _STRETCH, 1 + _STRETCH),
            )
            box = _find_place(ink.shape, draws.places[i], boxes[:num], size=self._size)
            if box is None:
                continue
            _blend(scene["images"], ink, box, np.array(colour))
            boxes[num], scene["box_labels"][num] = box, label + 1
            self._write_mask(ink, box, num, scene)
            num += 1

    def _write_mask(
        self, ink: np.ndarray, box: np.ndarray, i: int, scene: dict[str, np.ndarray]
    ) -> None:
        """Writes the masks of glyph i, with ink [h, w] in a box, [4] in pixels, into a scene."""
        pixels = ink >= _VISIBLE
        if "masks" in scene:
            whole = np.array([0, 0, *ink.shape])
            scene["masks"][i] = sample_mask(pixels, whole, size=scene["masks"].shape[-1])
        if "mask_counts" in scene:
            top, left, bottom, right = box.tolist()
            image = np.zeros(self._size, bool)
            image[top:bottom, left:right] = pixels
            write_run_lengths(run_lengths(image), scene["mask_counts"][i], where="a glyph")

    def _draw_ink(self, face: str, character: str) -> Image.Image:
        """Returns a character in white on black, without black rims."""
        font = self._font(face)
        drawing = Image.fromarray(draw_glyph(font, character, size=_INK_SIZE, change=Change()))
        return drawing.crop(drawing.getbbox())

    def _read_photographs(self) -> list[np.ndarray]:
        """Returns the parts of the photographs that belong to the split, uint8 [H, W, 3] each."""
        return [cut_split(read_photograph(name), split=self.p.split) for name in NAMES]


def _interpolate(part: float, low: float, high: float) -> float:
    return low + (high - low) * part


def _resize_ink(ink: Image.Image, *, height: float, stretch: float) -> np.ndarray:
    """Returns ink of a height in pixels, uint8 [h, w], without rims that can hardly be seen."""
    width = height * stretch * ink.width / ink.height
    small = ink.resize((max(1, round(width)), max(1, round(height))), Image.Resampling.BILINEAR)
    array = np.asarray(small)
    rows, columns = (np.flatnonzero(array.max(axis=axis) >= _VISIBLE) for axis in (1, 0))
    return array[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _find_place(
    shape: tuple[int, ...], places: np.ndarray, boxes: np.ndarray, *, size: tuple[int, int]
) -> np.ndarray | None:
    """Returns the first box of a shape, (h, w), that overlaps no other box; None if all do.

    Args:
        shape: height and width of the box, in pixels.
        places: [tries, 2], the positions to try, in 0..1 of the possible range along each axis.
        boxes: [n, 4], the other boxes, in pixels.
        size: (height, width) of the image, in pixels.
    """
    height, width = shape
    if height > size[0] or width > size[1]:
        return None
    for down, right in places.tolist():
        top, left = int(down * (size[0] - height + 1)), int(right * (size[1] - width + 1))
        box = np.array([top, left, top + height, left + width])
        overlaps = (box[:2] < boxes[:, 2:]) & (boxes[:, :2] < box[2:])
        if not overlaps.all(axis=1).any():
            return box
    return None


def _blend(image: np.ndarray, ink: np.ndarray, box: np.ndarray, colour: np.ndarray) -> None:
    """Draws ink [h, w] into a box of an image [H, W, 3] in a colour, [3] in 0..1.

    The colour is made dark over a light ground, and light over a dark ground.
    """
    top, left, bottom, right = box.tolist()
    ground = image[top:bottom, left:right].astype(np.float64)
    levels = 255 * _NEAR * colour
    if ground.mean() < 128:
        levels = 255 - levels
    cover = ink[..., None] / 255
    image[top:bottom, left:right] = np.rint(ground + cover * (levels - ground)).astype(np.uint8)


# ---- one letter for each image -------------------------------------------------------------------


_WIDEST = 0.45  # of `max_height`: with it, the widest glyph of all faces fits into an image


class LetterSceneInput(GlyphSceneInput):
    """Scenes with one letter or digit each, in grey, for classification.

    Batches: `images`, uint8 [B, H, W, 1], the means of the three colours; `labels`, int32 [B].
    """

    size: int = 32  # H, 32 to 2048 pixels
    num_classes: int = len(CLASSES)  # the first of GlyphInput's classes
    max_boxes: int = 1  # always 1
    min_height: float = 0.35  # least height of a glyph, as a share of H
    max_height: float = 0.45  # largest height of a glyph, as a share of H, at most 0.45

    def check(self) -> None:
        super().check()
        p = self.p
        if p.max_boxes != 1 or p.mask_size is not None or p.max_runs is not None:
            raise ParamError("max_boxes is 1, without masks: an image has the label of one glyph")
        if p.max_height > _WIDEST:
            raise ParamError(
                f"max_height={p.max_height} is above {_WIDEST}: wide glyphs would not fit"
            )

    def offers(self) -> dict[str, Any]:
        return super().offers() | {"image_shape": (*self._size, 1)}

    def read_indices(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        scenes = super().read_indices(indices)
        grey = scenes["images"].mean(axis=-1, keepdims=True)
        return {"images": grey.astype(np.uint8), "labels": scenes["box_labels"][:, 0] - 1}
