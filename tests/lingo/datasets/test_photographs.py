"""Squares of scikit-learn's two photographs."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from lingo.config.base.errors import MissingPackage
from lingo.data.images.image_input import ImageInput
from lingo.datasets.photographs import Photographs, photograph_path, read_photograph, squares


def test_squares_are_those_of_the_photographs():
    datasets = pytest.importorskip("sklearn.datasets", reason="needs lingo-tf[data]")
    china, flower = datasets.load_sample_images().images
    np.testing.assert_array_equal(read_photograph("china"), china)
    images, labels = Photographs.params().build().arrays
    assert images.shape == (1702, 64, 64, 3)
    assert labels.tolist() == [0] * 851 + [1] * 851
    np.testing.assert_array_equal(images[38], (china[16:80, 16:80] / 255).astype("f"))
    np.testing.assert_array_equal(images[851], (flower[:64, :64] / 255).astype("f"))


def test_train_and_heldout_share_no_pixel():
    places = np.arange(427 * 640).reshape(427, 640, 1)
    train, heldout = (squares(places, split=split) for split in ("train", "heldout"))
    assert (len(train), len(heldout)) == (621, 161)
    assert not {*train.ravel().tolist()} & {*heldout.ravel().tolist()}


def test_they_are_a_source_of_image_input():
    source = Photographs.params(split="heldout")
    data = ImageInput.params(source=source, batch_size=3).build()
    assert data.offers() == {"num_classes": 2, "image_shape": (64, 64, 3)}
    assert data.batch(0)["images"].shape == (3, 64, 64, 3)
    assert data.fingerprint()["images"] == 322


def test_without_scikit_learn_an_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[data\]'"):
        photograph_path("china")
