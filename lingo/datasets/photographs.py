"""Parts of the two photographs that come with scikit-learn: real JPEGs that need no download.

Axes: N images, H height, W width, C channels.
"""

from __future__ import annotations

import functools
import importlib.util
import os

import numpy as np
from PIL import Image

from lingo.config.base.errors import MissingPackage
from lingo.data.files import open_file
from lingo.data.images.image_input import Labelled, LabelledImages

NAMES = ("china", "flower")
"""The classes: a temple in China, and a flower."""

_SIDE, _STEP = 64, 16  # pixels: side of an image, and distance to the next image
_HELDOUT = 0.25  # share of a photograph's width, on the right


class Photographs(LabelledImages):
    """Squares of two photographs, of a temple and of a flower. `pip install 'lingo-tf[data]'`.

    Neighbouring squares overlap by three quarters. The squares in the right quarter of a photograph
    are held out, and share no pixel with the training squares; `heldout_fraction` changes nothing.
    As there are only two photographs, a model that tells them apart has learned two places, not two
    classes.
    """

    image_shape = (_SIDE, _SIDE, 3)
    num_classes = len(NAMES)

    def read(self) -> Labelled:
        parts = [squares(read_photograph(name), split=self.p.split) for name in NAMES]
        labels = np.repeat(np.arange(len(NAMES), dtype=np.int32), [len(part) for part in parts])
        return Labelled(np.concatenate(parts).astype(np.float32) / 255, labels)

    @functools.cached_property
    def arrays(self) -> Labelled:
        """The images of this split, which is chosen by position in the photograph, not by hash."""
        return self.read()


def read_photograph(name: str) -> np.ndarray:
    """Returns a photograph, uint8 [427, 640, 3]; raises MissingPackage without scikit-learn."""
    with open_file(photograph_path(name)) as file:
        return np.asarray(Image.open(file).convert("RGB"))


def photograph_path(name: str) -> str:
    """Returns the path of a photograph's JPEG; raises MissingPackage without scikit-learn."""
    spec = importlib.util.find_spec("sklearn")  # importing scikit-learn would take long
    if spec is None or spec.origin is None:
        raise MissingPackage(
            "Photographs needs scikit-learn, which is not installed: pip install 'lingo-tf[data]'"
        )
    return os.path.join(os.path.dirname(spec.origin), "datasets", "images", f"{name}.jpg")


def cut_split(photograph: np.ndarray, *, split: str) -> np.ndarray:
    """Returns the columns of a photograph [H, W, C] that belong to a split."""
    border = round((1 - _HELDOUT) * photograph.shape[1])
    first, last = {"all": (0, None), "train": (0, border), "heldout": (border, None)}[split]
    return photograph[:, first:last]


def squares(photograph: np.ndarray, *, split: str) -> np.ndarray:
    """Returns a photograph's squares that are in a split, uint8 [N, 64, 64, C]."""
    windows = np.lib.stride_tricks.sliding_window_view(
        cut_split(photograph, split=split), (_SIDE, _SIDE), axis=(0, 1)
    )
    part = windows[::_STEP, ::_STEP]  # [rows, columns, C, 64, 64]
    return part.reshape(-1, photograph.shape[2], _SIDE, _SIDE).transpose(0, 2, 3, 1)
