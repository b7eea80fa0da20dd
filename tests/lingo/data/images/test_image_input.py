"""Labelled images: an input of any step, and scikit-learn's digits."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn import datasets

from lingo.config.base.errors import MissingPackage
from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.images.image_input import ImageInput, Labelled, LabelledImages
from lingo.datasets.digits import Digits
from tests.lingo.data.documents import assert_starts_anywhere, specs_of
from tests.lingo.data.images.pictures import encode


class Squares(LabelledImages):
    """Image i is everywhere i / 10, and of class i % 3."""

    image_shape = (2, 3, 1)
    num_classes = 3

    def read(self) -> Labelled:
        numbers = np.arange(10)
        images = np.broadcast_to(numbers[:, None, None, None] / 10, [10, *self.image_shape])
        return Labelled(images.astype("f"), (numbers % 3).astype("i"))


def squares(**fields):
    return ImageInput.params(**{"source": Squares, "batch_size": 4} | fields).build()


def numbers_of(batch):
    return np.rint(10 * batch["images"][:, 0, 0, 0]).astype(int).tolist()


def test_an_epoch_has_each_image_once_in_an_order_of_its_own():
    data = squares(batch_size=5)
    epochs = [numbers_of(data.batch(2 * e)) + numbers_of(data.batch(2 * e + 1)) for e in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_batch_is_a_function_of_seed_and_step():
    assert_starts_anywhere(lambda: squares(seed=1), range(4))  # step 2 has rows of two epochs
    batch = squares(seed=1).batch(2)
    assert numbers_of(batch) != numbers_of(squares(seed=2).batch(2))
    np.testing.assert_array_equal(batch["labels"], np.array(numbers_of(batch)) % 3)


def test_a_single_pass_fills_its_last_batch_with_black_images_of_no_weight():
    data = squares(repeat=False, shuffle=False)
    assert data.num_batches() == 3
    last = data.batch(2)
    assert numbers_of(last) == [8, 9, 0, 0]
    assert last["weights"].tolist() == [1, 1, 0, 0]
    assert last["labels"].tolist() == [2, 0, 0, 0]


def test_batches_are_as_specs_say_before_anything_is_read():
    data = squares(enlarged_to=(4, 3, 2))
    specs = data.specs()
    assert "arrays" not in vars(data.source)
    assert specs_of(data.batch(0)) == specs


def test_the_task_is_offered_the_shape_and_the_classes():
    assert squares().offers() == {"num_classes": 3, "image_shape": (2, 3, 1)}
    assert squares(enlarged_to=(4, 3, 3)).offers()["image_shape"] == (4, 3, 3)


def test_images_grow_by_repeating_pixels():
    plain, large = (
        ImageInput.params(source=Digits, batch_size=3, enlarged_to=shape).build().batch(0)["images"]
        for shape in (None, (16, 24, 3))
    )
    for channel in range(3):
        expected = [np.kron(image, np.ones([2, 3])) for image in plain[..., 0]]
        np.testing.assert_array_equal(large[..., channel], expected)


def test_pixels_are_repeated_as_evenly_as_the_size_permits():
    plain, large = (squares(enlarged_to=shape).batch(0)["images"] for shape in (None, (5, 4, 1)))
    np.testing.assert_array_equal(large, plain[:, [0, 0, 0, 1, 1]][:, :, [0, 0, 1, 2]])


def test_a_smaller_shape_is_refused():
    for shape, along in (((1, 3, 1), "height"), ((2, 2, 1), "width"), ((2, 3, 0), "channels")):
        with pytest.raises(ParamError, match=f"the {along} is below"):
            squares(enlarged_to=shape)


def test_origins_name_the_epoch_and_the_image():
    data = squares()
    numbers = np.arange(8, 12)
    found = [origin.split(":") for origin in data.origins(numbers)]
    assert [epoch for epoch, _ in found] == ["0", "0", "1", "1"]
    assert [int(i) for _, i in found] == numbers_of(data.batch(2))


def test_splits_share_no_image_and_leave_none_out():
    data = [Digits.params(split=split).build().arrays for split in ("train", "heldout")]
    train, heldout = ({image.tobytes() for image in found.images} for found in data)
    assert not train & heldout
    assert sum(len(found.labels) for found in data) == 1797
    assert set(data[1].labels.tolist()) == set(range(10))


def test_digits_are_what_scikit_learn_has():
    found, expected = Digits.params().build().arrays, datasets.load_digits()
    np.testing.assert_array_equal(found.images[..., 0] * 16, expected.images)
    np.testing.assert_array_equal(found.labels, expected.target)
    assert (found.images.dtype, found.labels.dtype) == (np.float32, np.int32)
    assert found.images.shape[1:] == Digits.image_shape
    assert found.labels.max() == Digits.num_classes - 1


def test_without_scikit_learn_an_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    data = ImageInput.params(source=Digits, batch_size=2).build()
    assert data.offers()["num_classes"] == 10
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[data\]'"):
        data.prepare()


def test_the_fingerprint_tells_images_and_splits_apart():
    half = Squares.params(split="train", heldout_fraction=0.5)
    prints = [squares(source=source).fingerprint() for source in (Squares.params(), half)]
    assert prints[0]["images"] == 10
    assert prints[0]["bytes"] == 10 * 6 * 4
    assert prints[0]["source"] == "Squares()"
    assert prints[1]["source"] == "Squares(split='train', heldout_fraction=0.5)"
    assert prints[0]["digest"] != prints[1]["digest"]
    assert prints[0] == squares().fingerprint()


def test_a_split_without_images_is_an_error():
    source = Squares.params(split="heldout", heldout_fraction=1e-9)
    with pytest.raises(DataError, match="none of the 10 images is in this split"):
        squares(source=source).prepare()


def test_files_are_read_as_squares_of_the_digits_size(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, [8, 8], np.uint8)
    (tmp_path / "3.png").write_bytes(encode(pixels, "PNG"))
    digits = ImageInput.params(source=Digits.params(split="train"), batch_size=4).build()
    assert digits.class_names == tuple("0123456789")
    batch = digits.unlabeled_params(str(tmp_path)).build().batch(0)
    np.testing.assert_array_equal(batch["images"][0, ..., 0], pixels)
    assert batch["weights"].tolist() == [1, 0, 0, 0]


def test_files_cannot_be_oblong_images(tmp_path):
    with pytest.raises(
        ParamError, match=r"a\.png: .*ImageInput has images of 2 x 3 x 1: give arrays"
    ):
        squares().unlabeled_params("a.png")
