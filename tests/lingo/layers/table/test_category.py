"""Vocabulary numbers the categories of training rows; OneHot makes vectors of the numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import OneHot, Vocabulary, context
from lingo.ops.fingerprint import fingerprint

JOBS = ["nurse", "cook", "nurse", "baker", "nurse", "cook"]
TOWNS = ["Bern", "Basel", "", "Bern", "Chur", "Genf"]


def encode(*columns: list[str]) -> np.ndarray:
    """Returns fingerprints, int32 [B, T, 2]; an empty text is missing."""
    texts = np.array(columns).T
    words = fingerprint(tf.constant(texts)).numpy()
    return np.where(texts[..., None] == "", -1, words).astype("i")


def ids(layer: Vocabulary, x: np.ndarray, fitted_to: np.ndarray, *, xla: bool = False):
    state = {k: tf.constant(v, tf.float32) for k, v in layer.fit(fitted_to).items()}

    @tf.function(jit_compile=xla, autograph=False)
    def call(x: tf.Tensor) -> tf.Tensor:
        return context.apply(layer, {}, x, call={"state": state})[0]

    return call(tf.constant(x)).numpy()


@pytest.mark.parametrize("xla", [False, True])
def test_each_category_has_an_id_and_missing_and_unknown_have_theirs(xla: bool) -> None:
    layer = Vocabulary.params(sizes=(3, 4)).build()
    assert layer.id_counts == (5, 6)
    train = encode(JOBS, TOWNS)
    found = ids(layer, train, train, xla=xla)
    assert found[2, 1] == 1
    for texts, numbers in zip((JOBS, TOWNS), found.T, strict=True):
        known = {text: i for text, i in zip(texts, numbers.tolist(), strict=True) if text}
        assert sorted(known.values()) == [*range(2, 2 + len(known))]
    other = ids(layer, encode(["pilot", ""], ["bern", "Bern"]), train, xla=xla)
    assert other.tolist() == [[0, 0], [1, found[0, 1]]]


def test_the_most_frequent_categories_are_kept() -> None:
    draw = np.random.RandomState(0)
    texts = [f"c{i}" for i in np.minimum(draw.geometric(0.2, 3000), 30)]
    layer = Vocabulary.params(sizes=(10,)).build()
    train = encode(texts)
    found = ids(layer, train, train)[:, 0]
    counts = Counter(texts)
    least = sorted(counts.values())[-10]
    for text, number in zip(texts, found.tolist(), strict=True):
        assert (number >= 2) == (counts[text] >= least)


def test_a_fitted_vocabulary_does_not_depend_on_the_order_of_the_rows() -> None:
    layer, train = Vocabulary.params(sizes=(2, 4)).build(), encode(JOBS, TOWNS)
    first, second = layer.fit(train), layer.fit(train[::-1])
    np.testing.assert_array_equal(first["words"], second["words"])


def test_a_column_without_categories_knows_none() -> None:
    layer = Vocabulary.params(sizes=(2,)).build()
    train = encode(["", ""])
    assert ids(layer, encode(["", "x"]), train).tolist() == [[1], [0]]


def test_one_hot_is_the_rows_of_unit_matrices() -> None:
    x = np.array([[0, 2], [3, 0], [4, 1]], "i")
    y, _ = context.apply(OneHot.params(sizes=(4, 3)).build(), {}, tf.constant(x))
    first = np.vstack([np.eye(4), np.zeros(4)])[x[:, 0]]
    np.testing.assert_array_equal(y, np.hstack([first, np.eye(3)[x[:, 1]]]))


def test_a_size_of_zero_is_refused() -> None:
    with pytest.raises(ParamError, match="sizes"):
        Vocabulary.params(sizes=(3, 0)).build()
