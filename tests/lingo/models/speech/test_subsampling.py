"""Sub-sampling by convolutions: lengths, slow NumPy, padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.layers import BatchNorm
from lingo.layers.context import apply
from lingo.models import ConvSubsampling

X = np.random.default_rng(0).normal(size=[2, 13, 7]).astype(np.float32)


def layer(**fields: Any) -> Any:
    return ConvSubsampling.params(**{"dim": 7, "channels": 3, "output_dim": 5} | fields).build()


@pytest.mark.parametrize(("padding", "expected"), [("SAME", 25), ("VALID", 23)])
def test_98_frames_become(padding: Any, expected: int) -> None:
    subsampling = layer(dim=80, padding=padding)
    assert subsampling.output_shape((1, 98, 80)) == (1, expected, 5)
    assert subsampling.subsample(np.ones([1, 98], "i")).shape == (1, expected)


@pytest.mark.parametrize("length", [13, 12])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_windows_are_those_of_numpy(padding: Any, length: int, draw: Callable) -> None:
    subsampling, x = layer(padding=padding), X[:, :length]
    weights, y = draw(subsampling), x[..., None]
    for i in range(2):
        w, b = (np.asarray(weights[f"convs/{i}/{name}"]) for name in "wb")
        zeros = 1 if padding == "SAME" else 0
        y = np.pad(y, [(0, 0), (zeros, zeros), (zeros, zeros), (0, 0)])
        rows = []
        for t in range(0, y.shape[1] - 2, 2):
            windows = [y[:, t : t + 3, f : f + 3] for f in range(0, y.shape[2] - 2, 2)]
            rows.append(np.stack([np.einsum("bijc,ijcd->bd", v, w) + b for v in windows], 1))
        y = np.maximum(np.stack(rows, 1), 0)
    flat = y.reshape(*y.shape[:2], -1)
    expected = flat @ np.asarray(weights["projection/w"]) + np.asarray(weights["projection/b"])
    found = apply(subsampling, weights, x)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert subsampling.output_shape(x.shape) == found.shape


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_padding_changes_no_frame(padding: Any, draw: Callable) -> None:
    subsampling = layer(padding=padding, norm=BatchNorm)
    weights, lengths = draw(subsampling), np.array([13, 9])
    segments = (np.arange(13) < lengths[:, None]).astype("i")
    call = {"training": True}
    y, sides = apply(subsampling, weights, X, segments=segments, call=call)
    longer = np.where(segments[..., None] > 0, X, 5.0).astype("f")
    longer = np.pad(longer, [(0, 0), (0, 6), (0, 0)], constant_values=3.0)
    more = np.pad(segments, [(0, 0), (0, 6)])
    z, others = apply(subsampling, weights, longer, segments=more, call=call)
    kept = np.asarray(subsampling.subsample(segments)) > 0
    np.testing.assert_array_equal(kept.sum(1), [4, 3] if padding == "SAME" else [2, 1])
    np.testing.assert_allclose(z.numpy()[:, : y.shape[1]][kept], y.numpy()[kept], atol=1e-5)
    for name, value in sides.batch_statistics.items():
        assert others.batch_statistics[name]["weight"] == value["weight"]


def test_steps_need_whole_groups_of_frames_and_no_later_ones(draw: Callable) -> None:
    weights = draw(layer())
    with pytest.raises(ValueError, match=r"3 frames in a step, which has to have a multiple of 4"):
        apply(layer(), weights, X[:, :3], 0, method="step")
    with pytest.raises(ValueError, match=r"padding=VALID a result needs frames of later chunks"):
        apply(layer(padding="VALID"), weights, X[:, :4], 0, method="step")
