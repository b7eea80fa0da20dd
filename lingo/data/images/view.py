"""Which part of an image an example shows: a random one for training, the middle for evaluation.

Axes: B images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from lingo.config.params import Configurable, ParamError
from lingo.ops import random
from lingo.ops.image.box import Box, center_box
from lingo.ops.image.crop import inception_boxes
from lingo.ops.image.pixel import draw


class Window(NamedTuple):
    """A part of an image, which is resized to the size of the batch's images."""

    box: Box  # the part, in pixels of the whole image
    is_mirrored: bool = False  # left to right
    # (height, width) of the part in the batch's image; the rest, below and on the right before
    # mirroring, is black; None: the part fills the image
    shown: tuple[int, int] | None = None


class View(Configurable, interface=True):
    """Chooses the part of an image that an example shows, before the image is decoded."""

    is_fixed: ClassVar[bool] = False
    """Whether a window depends on the image's size alone, not on the key."""

    def windows(self, sizes: Sequence[tuple[int, int]], keys: random.Key) -> list[Window]:
        """Returns the windows of B images with `sizes`, (height, width); the keys draw them."""
        words = zip(*keys, strict=True)
        return [self.window(size, random.Key(*k)) for size, k in zip(sizes, words, strict=True)]

    def window(self, size: tuple[int, int], key: random.Key) -> Window:
        """Returns the part of an image of `size`, (height, width); the random key draws it."""
        raise NotImplementedError(f"{type(self).__name__} has no window")


class RandomView(View):
    """A random rectangle, mirrored or not (Szegedy et al. 2015, sec. 6): for training.

    For the same key, `lingo.ops.image.inception_crop` and `flip` give the same part.
    """

    min_area: float = 0.08  # smallest share of the image's area
    max_area: float = 1.0  # largest share of the image's area
    max_aspect: float = 4 / 3  # largest ratio of the longer to the shorter side
    flip_rate: float = 0.5  # probability of mirroring; 0 if left and right differ in meaning

    def check(self) -> None:
        p = self.p
        if not 0 < p.min_area <= p.max_area <= 1:
            raise ParamError(
                f"min_area={p.min_area} and max_area={p.max_area} are not"
                " 0 < min_area <= max_area <= 1"
            )
        if not p.max_aspect >= 1:
            raise ParamError(
                f"max_aspect={p.max_aspect} is below 1:"
                " it is the longer side divided by the shorter, so at least 1"
            )
        if not 0 <= p.flip_rate <= 1:
            raise ParamError(f"flip_rate={p.flip_rate} is not in 0..1")

    def window(self, size: tuple[int, int], key: random.Key) -> Window:
        return self.windows([size], random.key_array([key]))[0]

    def windows(self, sizes: Sequence[tuple[int, int]], keys: random.Key) -> list[Window]:
        p = self.p
        limits = {"min_area": p.min_area, "max_area": p.max_area, "max_aspect": p.max_aspect}
        boxes = inception_boxes(sizes, keys, **limits)
        is_mirrored = (draw(keys, "flip") < p.flip_rate).tolist()
        return [Window(*fields) for fields in zip(boxes, is_mirrored, strict=True)]


class CentralView(View):
    """The square in the middle: for evaluation."""

    is_fixed = True

    side: float = 0.875  # share of the image's shorter side: 0.875 is 224 of 256 pixels

    def check(self) -> None:
        if not 0 < self.p.side <= 1:
            raise ParamError(f"side={self.p.side} is not a part of the shorter side, 0 < side <= 1")

    def window(self, size: tuple[int, int], key: random.Key) -> Window:
        del key
        side = max(1, round(self.p.side * min(size)))
        return Window(center_box(size, (side, side)))
