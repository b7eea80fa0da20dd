"""The handwritten digits that come with scikit-learn: real images that need no download."""

from __future__ import annotations

import importlib

import numpy as np

from lingo.config.base.errors import MissingPackage
from lingo.data.images.image_input import Labelled, LabelledImages

_LARGEST = 16.0  # the largest pixel value; a pixel counts the black dots among 4 x 4 dots


class Digits(LabelledImages):
    """1,797 digits of 8 x 8 pixels in 17 shades (UCI). `pip install 'lingo-tf[data]'`.

    43 people wrote them; the same people wrote the held-out digits and the training digits.
    """

    image_shape = (8, 8, 1)
    num_classes = 10
    class_names = tuple("0123456789")

    def read(self) -> Labelled:
        try:
            datasets = importlib.import_module("sklearn.datasets")
        except ImportError:
            raise MissingPackage(
                "Digits needs scikit-learn, which is not installed: pip install 'lingo-tf[data]'"
            ) from None
        digits = datasets.load_digits()
        images = np.asarray(digits.images / _LARGEST, np.float32)[..., None]
        return Labelled(images, np.asarray(digits.target, np.int32))
