"""What all functions of an image have in common: types, shapes, keys and errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data import ArrayInput
from lingo.ops import image as functions
from lingo.ops import random
from tests.lingo.ops.image.images import as_float, noise, scene

KEY = random.root_key(8)
WITH_KEY = {
    "cutout": lambda image, key: functions.cutout(image, key, side=4),
    "auto_augment": lambda image, key: functions.auto_augment(image, key),
    "rand_augment": lambda image, key: functions.rand_augment(image, key),
    "random_erasing": lambda image, key: functions.random_erasing(image, key, rate=1),
    "color_jitter": lambda image, key: functions.color_jitter(image, key),
    "flip": lambda image, key: functions.flip(image, key),
    "inception_crop": lambda image, key: functions.inception_crop(image, key, size=(9, 12)),
    "pad_and_crop": lambda image, key: functions.pad_and_crop(image, key, padding=4),
}
WITHOUT_KEY = {
    "adjust_sharpness": lambda image: functions.adjust_sharpness(image, 1.3),
    "rotate": lambda image: functions.rotate(image, 30),
    "shear_x": lambda image: functions.shear_x(image, 0.3),
    "shear_y": lambda image: functions.shear_y(image, 0.3),
    "translate_x": lambda image: functions.translate_x(image, 3),
    "translate_y": lambda image: functions.translate_y(image, -3),
    "adjust_brightness": lambda image: functions.adjust_brightness(image, 1.3),
    "adjust_contrast": lambda image: functions.adjust_contrast(image, 1.3),
    "adjust_hue": lambda image: functions.adjust_hue(image, 0.3),
    "adjust_saturation": lambda image: functions.adjust_saturation(image, 1.3),
    "center_crop": lambda image: functions.center_crop(image, (9, 12)),
    "resize": lambda image: functions.resize(image, (9, 12)),
    "resize_short_side": lambda image: functions.resize_short_side(image, 9),
}
OF_BYTES = {
    "autocontrast": functions.autocontrast,
    "equalize": functions.equalize,
    "invert": functions.invert,
    "posterize": lambda image: functions.posterize(image, 4),
    "solarize": lambda image: functions.solarize(image, 100),
    "solarize_add": lambda image: functions.solarize_add(image, 60),
}
OF_FLOATS: dict[str, Callable[[np.ndarray], np.ndarray]] = WITHOUT_KEY | {
    name: lambda image, change=change: change(image, KEY) for name, change in WITH_KEY.items()
}
ALL = OF_BYTES | OF_FLOATS


def test_these_are_all_functions() -> None:
    of_batches = {"cutmix", "mixup"}  # in test_mixing.py
    of_boxes = {"flip_boxed", "min_iou_crop", "scale_jitter"}  # in test_boxed_image.py
    assert set(ALL) | of_batches | of_boxes == {
        name for name in functions.__all__ if name.islower()
    }


@pytest.mark.parametrize("name", ALL)
def test_images_keep_their_type_and_arguments_their_content(name: str) -> None:
    images = [scene(9, 12, 1), scene(9, 12, 3), as_float(scene(9, 12, 3))]
    for image in images[:2] if name in OF_BYTES else images:
        before = image.copy()
        result = ALL[name](image)
        assert (result.shape, result.dtype) == (image.shape, image.dtype)
        result[:] = 0  # which would change a view of the argument
        np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize("name", sorted(set(OF_FLOATS) - {"random_erasing"}))
def test_floats_become_what_their_bytes_become(name: str) -> None:
    """To three fractions that are cut from bytes, which the next change amplifies up to 1.4."""
    image = scene(9, 12, 3)
    result = ALL[name](as_float(image))
    assert 0 <= result.min() <= result.max() <= 1
    np.testing.assert_allclose(255 * result, ALL[name](image).astype("f"), atol=5)


@pytest.mark.parametrize("name", WITH_KEY)
def test_a_result_depends_on_the_key_alone(name: str) -> None:
    image = noise(9, 12, 3)
    keys = [random.fold(KEY, i) for i in range(12)]
    first = [WITH_KEY[name](image, key).tobytes() for key in keys]
    again = [WITH_KEY[name](image, key).tobytes() for key in reversed(keys)]
    assert first == again[::-1]
    least = {"flip": 2, "auto_augment": 7}.get(name, 10)  # some change nothing
    assert len(set(first)) >= least
    assert name != "flip" or len(set(first)) == 2


def load() -> dict[str, np.ndarray]:
    return {"image": np.stack([scene(9, 12, 3)] * 6)}


def change(example: dict[str, np.ndarray], key: random.Key) -> dict[str, np.ndarray]:
    image = functions.color_jitter(example["image"], key)
    return {"image": functions.inception_crop(image, key, size=(4, 5))}


def change_wrongly(example: dict[str, np.ndarray], key: random.Key) -> dict[str, np.ndarray]:
    return {"image": functions.flip(example["image"] / 255, key)}


def test_each_example_that_an_input_augments_has_draws_of_its_own() -> None:
    data = ArrayInput.params(function=load, augment=change, batch_size=4)
    images = np.concatenate([data.build().batch(step)["image"] for step in range(4)])
    assert len({image.tobytes() for image in images}) == 16  # of two epochs and a half
    resumed = data.build().batch(3, rows=slice(1, 3))["image"]  # by another process
    np.testing.assert_array_equal(resumed, images[13:15])


def test_an_error_names_the_line_that_gave_what_is_not_an_image() -> None:
    data = ArrayInput.params(function=load, augment=change_wrongly, batch_size=4).build()
    with pytest.raises(ParamError, match=r"test_pixel.py:\d+: ValueError: an image .* is float64"):
        data.batch(0)


def test_functions_draw_different_numbers_from_one_key() -> None:
    names = [f"function{i}" for i in range(500)]
    draws = [functions.pixel.draw(random.fold(KEY, i % 2), name) for i, name in enumerate(names)]
    assert len(set(map(float, draws))) == 500


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[0]], r"an image is a NumPy array \[H, W, C\], not a list"),
        (np.zeros([8, 8], "f"), r"an image is \[H, W, C\], without .* this one is \[8, 8\]"),
        (np.zeros([8, 0, 3], "f"), r"an image is .*, without empty axes; this one is \[8, 0, 3\]"),
        (np.zeros([8, 8, 3]), "an image is uint8, or float32 in 0..1; this one is float64"),
        (np.full([8, 8, 3], 16, "f"), r"in 0..1; this one is in 16..16: scale it to 0..1, and"),
        (np.full([8, 8, 3], -1, "f"), r"a float32 image is in 0..1; this one is in -1..-1"),
        (np.full([8, 8, 3], np.nan, "f"), r"a float32 image is in 0..1; this one is in nan..nan"),
    ],
)
def test_what_is_not_an_image_is_refused(name: str, value: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ALL[name](value)
