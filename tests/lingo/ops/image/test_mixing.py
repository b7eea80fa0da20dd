"""Mixed images have the parts of their partners that their mixed labels say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops import random
from lingo.ops.image import LabelledBatch, cutmix, mixup
from lingo.ops.image.mixing import symmetric_beta
from tests.lingo.ops.image.images import as_float, distance_to_uniform, noise

KEY = random.root_key(11)


def keys(size: int) -> random.Key:
    return random.fold(KEY, np.arange(size))


def batch_of(images: np.ndarray) -> LabelledBatch:
    """Returns a batch in which each image has a class of its own."""
    return LabelledBatch(images, np.eye(len(images), dtype=np.float32))


def noisy_batch(size: int) -> LabelledBatch:
    return batch_of(np.stack([noise(9, 8, 3, seed=i) for i in range(size)]))


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1, 3, 200])
def test_numbers_have_the_beta_distribution(alpha: float) -> None:
    numbers = symmetric_beta(keys(2000), alpha, name="mixup")
    distribution = tf.math.betainc(*(tf.constant(x, tf.float64) for x in (alpha, alpha, numbers)))
    assert distance_to_uniform(distribution.numpy()) < 1.95


def test_a_tiny_alpha_mixes_nothing_and_overflows_nowhere() -> None:
    numbers = symmetric_beta(keys(2000), 1e-5, name="mixup")
    assert np.minimum(numbers, 1 - numbers).max() < 1e-6
    assert abs(numbers.sum() - 1000) < 3.3 * np.sqrt(2000 / 4)


def test_images_are_blended_as_their_labels_say() -> None:
    whole = noisy_batch(6)
    for images in (whole.images, as_float(whole.images)):
        mixed = mixup(batch_of(images), keys(6), alpha=1)
        assert mixed.images.dtype == images.dtype
        expected = np.einsum("ij,jhwc->ihwc", mixed.labels, images.astype("f"))
        error = 0.501 if images.dtype == np.uint8 else 1e-6
        np.testing.assert_allclose(mixed.images.astype("f"), expected, atol=error)
        own, partner = mixed.labels.diagonal(), np.roll(mixed.labels, 1, axis=1).diagonal()
        np.testing.assert_array_equal(own + partner, 1)
        assert (own >= 0.5).all()
        assert len(set(own)) == 6


def test_weights_have_the_distribution_of_the_larger_share() -> None:
    mixed = mixup(batch_of(np.zeros([1500, 1, 1, 1], np.uint8)), keys(1500), alpha=0.2)
    own = tf.constant(mixed.labels.diagonal(), tf.float64)
    alpha = tf.constant(0.2, tf.float64)
    assert distance_to_uniform(2 * tf.math.betainc(alpha, alpha, own).numpy() - 1) < 1.95


def test_a_rectangle_is_replaced_and_labels_say_how_much() -> None:
    whole = noisy_batch(40)
    for images in (whole.images, as_float(whole.images)):
        mixed = cutmix(batch_of(images), keys(40))
        for i in range(40):
            is_own = (mixed.images[i] == images[i]).all(axis=2)
            replaced = ~is_own
            rectangle = replaced.any(axis=1)[:, None] & replaced.any(axis=0)
            np.testing.assert_array_equal(replaced, rectangle)
            np.testing.assert_array_equal(mixed.images[i][replaced], images[i - 1][replaced])
            np.testing.assert_allclose(mixed.labels[i, i], is_own.mean(), atol=1e-7)
            np.testing.assert_allclose(mixed.labels[i, i - 1], replaced.mean(), atol=1e-7)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_replaced_areas_are_distributed_as_in_the_paper(alpha: float) -> None:
    rng, height, width = np.random.default_rng(1), 120, 200

    def slow_area() -> float:
        side = np.sqrt(1 - rng.beta(alpha, alpha))
        part = 1.0
        for size in (height, width):
            middle, half = rng.integers(size), size * side / 2
            part *= min(middle + half, size) - max(middle - half, 0)
        return part / (height * width)

    expected = np.sort([slow_area() for _ in range(6000)])
    mixed = cutmix(batch_of(np.zeros([600, height, width, 1], np.uint8)), keys(600), alpha=alpha)
    quantiles = np.searchsorted(expected, 1 - mixed.labels.diagonal()) / len(expected)
    assert distance_to_uniform(quantiles) < 1.95 * np.sqrt(1.1)  # two samples


@pytest.mark.parametrize("mix", [mixup, cutmix])
class TestBoth:
    """What both ways of mixing have in common."""

    def test_labels_of_shares_keep_their_sum(self, mix: Callable) -> None:
        shares = np.random.default_rng(0).dirichlet([0.5] * 4, size=12).astype(np.float32)
        mixed = mix(LabelledBatch(noisy_batch(12).images, shares), keys(12), alpha=1)
        np.testing.assert_allclose(mixed.labels.sum(axis=1), 1, atol=3e-7)

    def test_the_partner_is_the_example_before_and_only_partners_depend_on_the_split(
        self, mix: Callable
    ) -> None:
        whole = noisy_batch(8)
        before = LabelledBatch(*(np.roll(x, 1, axis=0) for x in whole))
        mixed = mix(whole, keys(8), alpha=1)
        for first in (0, 4):
            part = slice(first, first + 4)
            own = LabelledBatch(*(x[part] for x in whole))
            own_keys = random.Key(*(word[part] for word in keys(8)))
            partners = LabelledBatch(*(x[part] for x in before))
            same = mix(own, own_keys, alpha=1, partners=partners)
            alone = mix(own, own_keys, alpha=1)
            for x, y, z in zip(mixed, same, alone, strict=True):
                np.testing.assert_array_equal(y, x[part])
                np.testing.assert_array_equal(z[1:], x[part][1:])
                assert (z[0] != x[part][0]).any()

    def test_the_same_keys_give_the_same_and_arguments_stay(self, mix: Callable) -> None:
        whole, again = noisy_batch(5), noisy_batch(5)
        first, second = mix(whole, keys(5), alpha=1), mix(whole, keys(5), alpha=1)
        for x, y in zip((*first, *whole), (*second, *again), strict=True):
            np.testing.assert_array_equal(x, y)
        other = mix(whole, random.fold(keys(5), 1), alpha=1)
        assert all((x != y).any(axis=1).all() for x, y in [(first.labels, other.labels)])

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"images": noise(4, 4, 3)}, r"an image is \[B, H, W, C\], without empty axes"),
            ({"images": np.full([3, 4, 4, 1], 2, "f")}, r"in 0..1; this one is in 2..2"),
            ({"labels": np.arange(3)}, r"float32 \[3, K\], the .*; these are int64 \[3\]: np.eye"),
            (
                {"labels": np.eye(4, dtype="f")},
                r"labels of 3 images .*; these are float32 \[4, 4\]",
            ),
            ({"keys": keys(2)}, r"3 images need as many keys, but keys are \[2\]: random.fold"),
            ({"keys": KEY}, r"3 images need as many keys, but keys are \[\]"),
            ({"alpha": 0}, r"alpha=0 is not above 0"),
            (
                {"partners": noisy_batch(2)},
                r"images of partners are uint8 \[2, 9, 8, 3\], but the batch",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused(self, mix: Callable, fields: dict, message: str) -> None:
        given = {**noisy_batch(3)._asdict(), "keys": keys(3)} | fields
        batch = LabelledBatch(given.pop("images"), given.pop("labels"))
        with pytest.raises(ValueError, match=message):
            mix(batch, given.pop("keys"), **given)
