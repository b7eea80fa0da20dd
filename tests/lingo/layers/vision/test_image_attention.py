"""Attention over images, against one product after the other in NumPy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.layers import ImageAttention
from lingo.layers.context import apply

H, W = 3, 4
X = np.random.default_rng(0).normal(size=[2, H, W, 5]).astype(np.float32)
LAYER = ImageAttention.params(dim=5, output_dim=6, num_heads=2, image=(H, W))


@pytest.mark.parametrize("positions", ["relative", "absolute", "none"])
def test_it_is_what_loops_over_all_pairs_of_places_compute(
    positions: str, draw, traced_flops
) -> None:
    layer = LAYER.copy().set(positions=positions).build()
    drawn = draw(layer)
    weights = {name: value.numpy().astype(float) for name, value in drawn.items()}
    places = [(h, w) for h in range(H) for w in range(W)]
    expected = np.zeros([2, H, W, 2, 3])
    for b, n, (h, w) in itertools.product(range(2), range(2), places):
        query, logits = X[b, h, w] @ weights["w_query"][:, n] / math.sqrt(3), []
        for g, v in places:
            key = X[b, g, v] @ weights["w_key"][:, n]
            if positions == "relative":
                key = key + weights["r_height"][g - h + H - 1] + weights["r_width"][v - w + W - 1]
            elif positions == "absolute":
                key = key + weights["a_height"][g] + weights["a_width"][v]
            logits.append(query @ key)
        shares = np.exp(logits) / np.sum(np.exp(logits))
        for share, (g, v) in zip(shares, places, strict=True):
            expected[b, h, w, n] += share * (X[b, g, v] @ weights["w_value"][:, n])
    found = apply(layer, drawn, X)[0]
    np.testing.assert_allclose(found, expected.reshape(2, H, W, 6), rtol=0, atol=1e-5)
    assert layer.output_shape(X.shape) == tuple(found.shape)
    assert layer.flops(X.shape) == traced_flops(layer, X)


def test_only_vectors_of_distances_tell_places_apart(draw) -> None:
    layer = LAYER.build()
    weights, order = draw(layer), np.random.default_rng(1).permutation(H * W)
    without = weights | {name: 0 * weights[name] for name in ("r_height", "r_width")}

    def permute(x: np.ndarray) -> np.ndarray:
        return x.reshape(2, H * W, -1)[:, order].reshape(2, H, W, -1)

    def moves(weights: dict[str, Any]) -> bool:
        """Returns whether results of permuted places are permuted results."""
        found, expected = (apply(layer, weights, x)[0].numpy() for x in (permute(X), X))
        return np.allclose(found, permute(expected), atol=1e-5)

    assert moves(without)
    assert not moves(weights)


def test_images_of_another_size_are_refused(draw) -> None:
    layer = LAYER.build()
    with pytest.raises(ParamError, match=r"images of \(4, 3\), but the layer has image=\(3, 4\)"):
        apply(layer, draw(layer), X.transpose(0, 2, 1, 3))
