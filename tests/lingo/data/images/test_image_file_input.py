"""Encoded images as an input: batches by (seed, step), views, fingerprints and damaged files."""

from __future__ import annotations

import os
import shutil
import threading
import time

import numpy as np
import pytest
from PIL import Image

import lingo
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.data.derived_input import DerivedInput, RepeatedInput
from lingo.data.files import DataError
from lingo.data.images.image_file_input import ImageFileInput
from lingo.data.images.image_folder import ImageFolder
from lingo.data.images.mixed_input import MixedInput
from lingo.data.images.view import CentralView, RandomView
from lingo.data.mixture import Mixture
from lingo.data.prefetch import Prefetch
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.ops import random
from lingo.ops.image import inception_crop
from lingo.optim.sgd import Sgd
from tasks.image.task import ImageClassification
from tests.lingo.data.documents import assert_starts_anywhere, specs_of
from tests.lingo.data.images.pictures import decode_by_pillow, encode, picture, write_folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "pets", num=5)


class MeanColour(Layer):
    """Logits of two classes from the mean of each channel."""

    linear: Linear = Linear

    def setup(self):
        self.linear = self.p.linear.build(dim=3, output_dim=2)

    def __call__(self, x):
        return self.linear(tf.reduce_mean(tf.cast(x, tf.float32), [1, 2]))

    def output_shape(self, shape):
        return (shape[0], 2)


def pets(root, **fields):
    source = ImageFolder.params(folder=str(root), num_classes=2)
    defaults = {"source": source, "size": 16, "batch_size": 4, "view": RandomView}
    return ImageFileInput.params(**defaults | fields).build()


def invert(example, key):
    del key
    return example | {"images": 255 - example["images"]}


def test_a_batch_is_as_offered_and_as_specs_say(root):
    for channels in (1, 3):
        data = pets(root, channels=channels)
        assert data.offers() == {"num_classes": 2, "image_shape": (16, 16, channels)}
        batch = data.batch(0)
        assert specs_of(batch) == data.specs()
        assert (batch["images"].dtype, batch["labels"].dtype) == (np.uint8, np.int32)
        assert batch["images"].shape == (4, 16, 16, channels)
        data.check_repeatable()


def test_an_epoch_has_every_image_once_with_the_label_of_its_class(root):
    data = pets(root, view=CentralView.params(side=1.0), size=20, repeat=False, batch_size=10)
    batch = data.batch(0)
    files = sorted(root.glob("*/*"))
    order = data._order().indices(np.arange(10))
    for pixels, label, place in zip(batch["images"], batch["labels"], order, strict=True):
        assert label == ("cat", "dog").index(files[place].parent.name)
        if files[place].name == "1.png":  # 21 x 30
            whole = decode_by_pillow(files[place].read_bytes())
            corners = whole[0, 4].astype(int), whole[20, 24].astype(int)
            assert abs(pixels[0, 0] - corners[0]).max() < 8
            assert abs(pixels[19, 19] - corners[1]).max() < 8
    assert sorted(order.tolist()) == list(range(10))


def test_batches_are_functions_of_seed_and_step(root):
    assert_starts_anywhere(lambda: pets(root), range(5))
    whole = pets(root).batch(3)
    for rows in (slice(0, 1), slice(1, 4), slice(2, 2)):  # as hosts read them
        part = pets(root).batch(3, rows=rows)
        for name, array in part.items():
            np.testing.assert_array_equal(array, whole[name][rows])
    assert (pets(root, seed=1).batch(3)["images"] != whole["images"]).any()


def test_large_batches_are_those_of_small_ones(root):
    large = pets(root, batch_size=60).batch(0)
    small = [pets(root, batch_size=4).batch(step) for step in range(15)]
    for name in ("images", "labels", "example_id"):
        np.testing.assert_array_equal(large[name], np.concatenate([b[name] for b in small]))


def test_views_differ_from_epoch_to_epoch_and_are_those_of_inception_crop(root):
    data = pets(root, shuffle=False, view=RandomView.params(flip_rate=0, min_area=0.5))
    numbers = np.array([1, 11, 21])  # three times the image cat/1.png
    images = data.read(numbers)["images"]
    assert len({image.tobytes() for image in images}) == 3
    whole = decode_by_pillow((root / "cat" / "1.png").read_bytes())
    root_key = random.fold(random.root_key(0), random.text_hash("view"))
    for number, image in zip(numbers.tolist(), images, strict=True):
        key = random.fold(random.fold(root_key, 0), number)
        expected = inception_crop(whole, key, size=(16, 16), min_area=0.5)
        assert np.abs(image.astype(int) - expected).mean() < 3  # that shrinks antialiased


def test_cached_images_are_those_that_are_decoded_and_are_read_once(tmp_path):
    root = write_folder(tmp_path / "pets", num=5)
    fields = {"view": CentralView, "batch_size": 7}  # of 10: batches cross epochs
    expected = [pets(root, **fields).batch(step) for step in range(6)]
    data = pets(root, cache=True, **fields)
    for step in range(2):
        data.batch(step)
    shutil.rmtree(root)
    for step in range(6):
        for name, array in data.batch(step).items():
            np.testing.assert_array_equal(array, expected[step][name])
    assert data.remarks() == ["keeps 10 decoded images in memory: up to 7.2e-06 GiB"]


def test_an_image_of_too_many_pixels_is_refused_by_name(root, tmp_path):
    np.testing.assert_array_equal(
        pets(root, max_pixels=24 * 30).batch(0)["images"], pets(root).batch(0)["images"]
    )
    data = pets(root, max_pixels=20 * 30, shuffle=False)
    message = (
        r"cat/1\.png: the image cannot be decoded: it has 30 x 21 pixels, more than 600, the max_"
    )
    with pytest.raises(DataError, match=message):
        data.batch(0)
    with pytest.raises(ParamError, match="max_pixels"):
        pets(root, max_pixels=0)


def test_an_image_of_too_many_bytes_is_refused_before_it_is_read(tmp_path):
    root = write_folder(tmp_path / "pets", num=1)
    os.truncate(root / "cat/0.jpeg", 1 << 30)
    with pytest.raises(
        DataError, match=r"cat/0\.jpeg: the image has 1,073,741,824 bytes, more than"
    ):
        pets(root).prepare()


def test_augment_gets_the_part_that_is_seen(root):
    plain, inverted = (pets(root, augment=augment).batch(2) for augment in (None, invert))
    np.testing.assert_array_equal(inverted["images"], 255 - plain["images"])


@pytest.mark.parametrize("fields", [{}, {"repeat": False}, {"cache": True, "view": CentralView}])
def test_threads_make_the_same_batches(root, fields):
    data, plain = pets(root, **fields), pets(root, **fields)
    assert data.allows_threads()
    num = 3 if "repeat" in fields else 7
    spans = [range(2), *(range(i, i + 1) for i in range(2, num))]
    with Prefetch(data, spans=spans, rows=lambda size: slice(1, size)) as items:
        for steps, batches in items:
            for i, step in enumerate(steps):
                for name, array in plain.batch(step, rows=slice(1, 4)).items():
                    np.testing.assert_array_equal(batches[name][i], array)


class Alone:
    """Fails if two threads are inside at a time."""

    def __init__(self):
        self.lock = threading.Lock()

    def __enter__(self):
        assert self.lock.acquire(blocking=False), "two threads are here at a time"
        time.sleep(0.01)  # long enough for another thread to come here, if it could

    def __exit__(self, *exception):
        self.lock.release()


def test_views_and_augmentation_are_called_by_one_thread_at_a_time(root, monkeypatch):
    viewing, augmenting, windows = Alone(), Alone(), RandomView.windows

    def note_view(*arguments):
        with viewing:
            return windows(*arguments)

    def note(example, key):
        del key
        with augmenting:
            return example

    monkeypatch.setattr(RandomView, "windows", note_view)
    with Prefetch(pets(root, augment=note), spans=[range(i, i + 1) for i in range(7)]) as items:
        assert len(list(items)) == 7


def test_mixtures_and_mixed_images_allow_the_threads_of_what_they_mix(root):
    part = ImageFileInput.params(source=pets(root).p.source, size=8)
    inputs = [
        Mixture.params(batch_size=4, inputs={"a": part, "b": part.copy()}),
        MixedInput.params(input=part, batch_size=4),
        RepeatedInput.params(input=pets(root).p),
    ]
    assert all(input.build().allows_threads() for input in inputs)
    own = Own.params(source=pets(root).p.source, size=8)
    assert not Mixture.params(batch_size=4, inputs={"a": part, "b": own}).build().allows_threads()


class Own(ImageFileInput):
    """A class of one's own."""


def test_a_single_pass_ends_with_black_images_of_no_weight(root):
    last = pets(root, repeat=False, shuffle=False).batch(2)
    assert last["weights"].tolist() == [1, 1, 0, 0]
    assert last["labels"].tolist() == [1, 1, 0, 0]
    assert [image.any() for image in last["images"]] == [True, True, False, False]


def test_two_inputs_mix(root):
    part = ImageFileInput.params(source=pets(root).p.source, size=8)
    mixed = Mixture.params(batch_size=4, inputs={"a": part, "b": part.copy()}).build()
    assert mixed.batch(0)["images"].shape == (4, 8, 8, 3)


def test_the_fingerprint_tells_files_contents_and_classes_apart(root, tmp_path):
    first = pets(root).fingerprint()
    assert first == pets(root, seed=1, size=8).fingerprint()
    assert first["images"] == 10
    assert first["bytes"] == sum(f.stat().st_size + 4 for f in root.glob("*/*"))
    copies = {name: shutil.copytree(root, tmp_path / name) for name in ("same", "named", "other")}
    (copies["named"] / "cat" / "0.jpeg").rename(copies["named"] / "cat" / "9.jpeg")
    (copies["other"] / "cat" / "0.jpeg").write_bytes(encode(picture(9, 9)))
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    source = ImageFolder.params(
        folder=str(root), num_classes=2, classes=str(tmp_path / "classes.txt")
    )
    digests = {name: pets(copy).fingerprint()["digest"] for name, copy in copies.items()}
    assert digests.pop("same") == first["digest"]
    found = [first["digest"], *digests.values(), pets(root, source=source).fingerprint()["digest"]]
    assert len({*found}) == 4


@pytest.mark.parametrize("form", ["jpeg", "png"])
def test_an_image_that_is_cut_short_is_an_error_that_names_its_file(tmp_path, form):
    folder = write_folder(tmp_path / "pets", num=10)
    file = folder / "dog" / f"{7 if form == 'png' else 8}.{form}"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    broken = pets(folder, batch_size=20, view=CentralView.params(side=1.0))
    with pytest.raises(DataError, match=rf"{file}: the image cannot be decoded: .*\. Replace it"):
        broken.batch(0)
    file.write_bytes(data[:12])
    with pytest.raises(DataError, match=rf"{file}: the image cannot be decoded: "):
        pets(folder, batch_size=20).batch(0)


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path):
    folder = write_folder(tmp_path / "pets")
    data = pets(folder)
    data.prepare()
    for file in folder.glob("*/*"):
        os.utime(file, (1, 1))
    with pytest.raises(DataError, match="has changed since this run listed"):
        data.batch(0)


def test_what_is_left_out_is_remarked(tmp_path):
    folder = write_folder(tmp_path / "pets")
    (folder / "cat" / "0.jpeg").write_bytes(b"<html>")
    source = ImageFolder.params(folder=str(folder), num_classes=2, max_damaged=1)
    data = pets(folder, source=source)
    assert data.fingerprint()["damaged"] == 1
    (remark,) = data.remarks()
    assert "left out 1 damaged record" in remark


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "size=0 is not positive"),
        ({"channels": 2}, "channels"),
        ({"batch_size": 0}, "batch_size=0 is not positive"),
        ({"cache": True}, "RandomView shows another part in each epoch"),
    ],
)
def test_fields_out_of_range_are_refused(root, fields, message):
    with pytest.raises(ParamError, match=message):
        pets(root, **fields)


def test_a_run_that_was_stopped_has_the_losses_of_one_that_was_not(root, tmp_path):
    def experiment(max_steps):
        return Experiment.params(
            task=ImageClassification.params(model=MeanColour),
            train_input=pets(root).p.copy(),
            optimizer=Sgd.params(learning_rate=0.1),
            max_steps=max_steps,
        )

    lingo.train(experiment(6), tmp_path / "whole")
    lingo.train(experiment(3), tmp_path / "parts")
    lingo.train(experiment(6), tmp_path / "parts")
    whole, parts = (lingo.load(tmp_path / name, trust=[__file__]) for name in ("whole", "parts"))
    for name, value in whole.weights.items():
        np.testing.assert_array_equal(value, parts.weights[name])


@pytest.mark.parametrize("wrap", [lambda p: p, lambda p: RepeatedInput.params(input=p)])
def test_classes_have_the_names_of_their_folders_in_order_of_labels(root, wrap):
    input = wrap(pets(root).p.copy()).build()
    assert input.class_names == ("cat", "dog")


def test_other_files_are_seen_as_in_the_evaluation_and_have_no_labels(root, tmp_path):
    evaluation = pets(root, view=CentralView, repeat=False, shuffle=False, max_batches=1)
    other = evaluation.unlabeled_params(str(root)).build()
    assert (other.num_batches(), other.num_examples()) == (3, 10)
    whole = pets(root, view=CentralView, repeat=False, shuffle=False)
    for step in range(3):
        batch, labelled = other.batch(step), whole.batch(step)
        assert "labels" not in batch
        np.testing.assert_array_equal(batch["images"], labelled["images"])
    assert [os.path.basename(name) for name in other.example_names(np.arange(4))] == [
        "0.jpeg", "1.png", "2.jpeg", "3.png"
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(10, 12), (64, 80), (16, 16)])
def test_an_image_of_another_size_is_the_central_square_resized(root, tmp_path, shape):
    height, width = shape
    pixels = Image.fromarray(picture(height, width))
    (tmp_path / "a.png").write_bytes(encode(pixels, "PNG"))
    view = CentralView.params(side=1.0)
    data = pets(root, view=view, repeat=False).unlabeled_params(str(tmp_path / "a.png")).build()
    left, factor = (width - height) // 2, max(1, height // 16)
    square = pixels.crop((left, 0, left + height, height)).reduce(factor)
    expected = np.asarray(square.resize((16, 16), Image.Resampling.BILINEAR), int)
    assert np.abs(data.batch(0)["images"][0] - expected).max() <= 1


class Negative(DerivedInput):
    """Images whose levels are reversed."""

    def examples(self, numbers):
        arrays = self.input.examples(numbers)
        return {**arrays, "images": 255 - arrays["images"]}

    def specs(self):
        return self.input.specs()


@pytest.mark.parametrize("wrapper", [MixedInput, Negative, RepeatedInput])
def test_an_input_around_it_reads_other_files_too(root, wrapper):
    source = ImageFolder.params(folder=str(root), num_classes=2)
    inner = ImageFileInput.params(view=CentralView, source=source, size=16)
    if wrapper is RepeatedInput:
        around = RepeatedInput.params(input=inner.set(batch_size=4)).build()
    else:
        around = wrapper.params(input=inner, batch_size=4).build()
    other = around.unlabeled_params(str(root / "cat")).build()
    plain = pets(root, view=CentralView, repeat=False).unlabeled_params(str(root / "cat")).build()
    assert (other.num_batches(), around.class_names) == (2, ("cat", "dog"))
    images = plain.batch(0)["images"]
    expected = 255 - images if wrapper is Negative else images
    np.testing.assert_array_equal(other.batch(0)["images"], expected)
    assert other.example_names(np.arange(5)) == plain.example_names(np.arange(5))


def test_files_are_not_predicted_by_an_input_that_changes_images_at_random(root):
    for fields in ({}, {"view": CentralView, "augment": lambda example, key: example}):
        with pytest.raises(ParamError, match="ImageFileInput changes images at random"):
            pets(root, **fields).unlabeled_params("a.png")
