"""The handwritten digits that scikit-learn brings: real images that need no network."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np

from lingo.config.errors import MissingPackage
from lingo.data.images.labelled import Labelled, LabelledImages

_LARGEST = 16.0  # of a pixel: how many of 4 x 4 dots are black


class Digits(LabelledImages):
    """1,797 digits of 8 x 8 pixels in 17 shades (UCI). `pip install 'lingo-tf[data]'`.

    43 people wrote them; the same people wrote what is held out and what is not.
    """

    image_shape = (8, 8, 1)
    num_classes = 10

    def read(self) -> Labelled:
        found = _datasets().load_digits()
        images = np.asarray(found.images / _LARGEST, np.float32)[..., None]
        return Labelled(images, np.asarray(found.target, np.int32))


def _datasets() -> ModuleType:
    """Imports scikit-learn's data sets; raises MissingPackage if it is not installed."""
    try:
        return importlib.import_module("sklearn.datasets")
    except ImportError:
        raise MissingPackage(
            "Digits needs scikit-learn, which is not installed: pip install 'lingo-tf[data]'"
        ) from None
