"""Which part of an image is seen: random for training, the middle for evaluation."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.images.view import CentralView, RandomView, View, Window
from lingo.ops import random
from lingo.ops.image import flip, inception_crop
from lingo.ops.image.box import Box
from tests.lingo.data.images.pictures import picture

KEYS = [random.fold(random.root_key(0), i) for i in range(200)]


def test_a_random_view_is_that_of_inception_crop_and_flip_for_the_same_key():
    image, view = picture(40, 60), RandomView.params().build()
    for key in KEYS[:20]:
        box, is_mirrored, _ = view.window((40, 60), key)
        part = image[box.slices]
        np.testing.assert_array_equal(
            inception_crop(image, key, size=(box.height, box.width)), part
        )
        np.testing.assert_array_equal(flip(part, key), part[:, ::-1] if is_mirrored else part)


def test_windows_of_several_images_are_those_of_each():
    sizes = [(40, 60), (300, 20), (7, 7)]
    for view in (RandomView.params().build(), CentralView.params().build()):
        windows = view.windows(sizes, random.key_array(KEYS[:3]))
        assert windows == [view.window(*pair) for pair in zip(sizes, KEYS[:3], strict=True)]


def test_about_half_of_random_views_are_mirrored_and_none_at_rate_0():
    rates = [
        np.mean([view.window((40, 60), key).is_mirrored for key in KEYS])
        for view in (RandomView.params().build(), RandomView.params(flip_rate=0).build())
    ]
    assert 0.4 < rates[0] < 0.6
    assert rates[1] == 0


def test_the_central_view_is_a_square_in_the_middle():
    assert CentralView.params().build().window((256, 300), KEYS[0]) == Window(
        Box(row=16, column=38, height=224, width=224)
    )
    assert CentralView.params(side=1.0).build().window((5, 3), KEYS[0]).box == Box(1, 0, 3, 3)
    assert CentralView.params(side=0.01).build().window((5, 3), KEYS[0]).box == Box(2, 1, 1, 1)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (RandomView.params(min_area=0), "min_area=0"),
        (RandomView.params(min_area=0.5, max_area=0.4), "max_area=0.4 are not"),
        (RandomView.params(max_aspect=0.9), "max_aspect=0.9 is below 1: it is the longer side"),
        (RandomView.params(flip_rate=1.5), "flip_rate=1.5 is not in 0..1"),
        (CentralView.params(side=0), "side=0"),
        (CentralView.params(side=1.1), "side=1.1 is not a part"),
    ],
)
def test_fields_out_of_range_are_refused(view, message):
    with pytest.raises(ParamError, match=message):
        view.build()


def test_a_view_needs_a_window():
    class Nothing(View):
        """A view without a window."""

    with pytest.raises(NotImplementedError, match="Nothing has no window"):
        Nothing.params().build().window((2, 2), KEYS[0])
