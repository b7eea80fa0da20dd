"""Normalize and Bucketize compute what scikit-learn does, and keep missing numbers apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import KBinsDiscretizer, StandardScaler

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import Bucketize, Layer, Normalize, context

DRAW = np.random.RandomState(0)
X = (DRAW.lognormal(size=(500, 3)) * [1e-3, 1.0, 1e4] + [0, 5, -1e5]).astype("f")


def call(layer: Layer, x: np.ndarray, fitted_to: np.ndarray | None = None) -> np.ndarray:
    state = layer.fit(x if fitted_to is None else fitted_to)
    tensors = {name: tf.constant(value, tf.float32) for name, value in state.items()}
    y, _ = context.apply(layer, {}, tf.constant(x), call={"state": tensors})
    return y.numpy()


def with_gaps() -> np.ndarray:
    x = X.copy()
    x[::7, 0] = x[3::5, 1] = np.nan
    return x


def test_normalize_is_the_standard_scaler_of_scikit_learn() -> None:
    z = call(Normalize.params(dim=3).build(), X)
    np.testing.assert_allclose(z, StandardScaler().fit_transform(X.astype("d")), atol=2e-4)


def test_missing_numbers_neither_count_nor_stay() -> None:
    layer, x = Normalize.params(dim=3).build(), with_gaps()
    state = layer.fit(x)
    np.testing.assert_allclose(state["mean"], np.nanmean(x.astype("d"), 0), rtol=1e-9)
    np.testing.assert_allclose(state["scale"], np.nanstd(x.astype("d"), 0), rtol=1e-9)
    z = call(layer, x)
    assert (z[np.isnan(x)] == 0).all()
    assert np.isfinite(z).all()


@pytest.mark.parametrize("value", [0.0, 0.1, -1e9])
def test_a_column_of_equal_numbers_becomes_zeros(value: float) -> None:
    layer = Normalize.params(dim=1).build()
    x = np.full((1000, 1), value, "f")
    assert layer.fit(x)["scale"].tolist() == [1.0]
    assert np.abs(call(layer, x)).max() <= np.spacing(np.float32(abs(value)))


def test_a_column_without_numbers_keeps_its_zeros() -> None:
    layer = Normalize.params(dim=1).build()
    assert layer.fit(np.full((4, 1), np.nan))["mean"].tolist() == [0.0]
    assert call(layer, np.full((4, 1), np.nan, "f")).tolist() == [[0.0]] * 4


def test_restore_undoes_the_call() -> None:
    layer = Normalize.params(dim=3).build()
    state = {name: tf.constant(value, tf.float32) for name, value in layer.fit(X).items()}
    z, _ = context.apply(layer, {}, tf.constant(X), call={"state": state})
    back, _ = context.apply(layer, {}, z, method="restore", call={"state": state})
    np.testing.assert_allclose(back, X, rtol=1e-5)


def test_buckets_are_those_of_scikit_learns_quantiles() -> None:
    found = call(Bucketize.params(dim=3, num_buckets=7).build(), X)
    options: dict[str, Any] = {"encode": "ordinal", "strategy": "quantile"}
    bins = KBinsDiscretizer(7, quantile_method="linear", subsample=None, **options)
    expected = 1 + bins.fit_transform(X.astype("d"))
    # the boundaries are float32, so that a row next to one may be in the next bucket
    assert (found != expected).mean() < 0.005
    assert np.abs(found - expected).max() <= 1


def test_missing_numbers_have_bucket_zero_and_buckets_are_full() -> None:
    layer, x = Bucketize.params(dim=3, num_buckets=4).build(), with_gaps()
    found = call(layer, x)
    np.testing.assert_array_equal(found == 0, np.isnan(x))
    counts = np.bincount(found[:, 0], minlength=5)[1:]
    assert counts.max() - counts.min() <= 1
    assert layer.sizes == (5, 5, 5)


def test_a_number_beyond_the_training_rows_is_in_the_first_or_last_bucket() -> None:
    x = np.array([[-np.inf], [np.inf]], "f")
    assert call(Bucketize.params(dim=1, num_buckets=4).build(), x, X[:, :1]).tolist() == [[1], [4]]


def test_one_bucket_is_refused() -> None:
    with pytest.raises(ParamError, match="num_buckets=1: give at least 2"):
        Bucketize.params(dim=1, num_buckets=1).build()
