"""Balls in noise: what is bright, what is labelled, and what makes volumes differ."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.datasets.blob_input import CLASSES, BlobInput
from tests.lingo.data.documents import assert_starts_anywhere, specs_of


def blobs(**fields):
    return BlobInput.params(**{"batch_size": 3, "size": 16} | fields).build()


def test_a_batch_is_as_the_specs_say():
    data = blobs()
    assert specs_of(data.batch(0)) == data.specs()
    assert data.specs()["labels"] == ((3, 16, 16, 16), "int32")


def test_solid_balls_are_bright_and_hollow_ones_have_a_dark_cavity():
    batch = blobs(noise=0.0, batch_size=32).batch(0)
    bright, labels = batch["images"][..., 0], batch["labels"]
    assert set(np.unique(labels)) == set(range(len(CLASSES)))
    assert set(np.unique(bright)) == {0.0, 1.0}
    assert not bright[labels == 0].any()
    assert bright[labels == 1].all()
    assert 0.5 < bright[labels == 2].mean() < 0.9, "1 - 0.65 ** 3 is 0.73"


def test_noise_has_its_deviation():
    batch = blobs(noise=0.5, batch_size=32).batch(0)
    background = batch["images"][..., 0][batch["labels"] == 0]
    np.testing.assert_allclose(background.std(), 0.5, rtol=0.01)
    np.testing.assert_allclose(background.mean(), 0, atol=0.01)


def test_splits_share_no_volume_and_seeds_share_all():
    indices = np.arange(4)
    train, other, heldout = (
        blobs(**fields).read_indices(indices)["images"]
        for fields in ({}, {"seed": 5}, {"split": "heldout"})
    )
    np.testing.assert_array_equal(train, other)
    assert not np.isclose(train, heldout).all(axis=(1, 2, 3, 4)).any()


def test_it_starts_anywhere():
    assert_starts_anywhere(blobs, range(3))


def test_volumes_without_room_for_a_cavity_are_refused():
    with pytest.raises(ParamError, match="size=4 is below 8"):
        blobs(size=4)
