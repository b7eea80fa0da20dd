"""Vision Transformers: the published number of weights, and a whole network against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.layers import Chain, Layer
from lingo.layers.context import apply
from lingo.models.image.vit import SIZES, Encoder, vit

erf = np.vectorize(math.erf)


def model(*, num_classes: int = 1000, **fields: Any) -> Layer:
    return Chain.params(layers=vit(num_classes=num_classes, **fields)).build()


def num_weights(layer: Layer) -> int:
    return sum(spec.size for spec in layer.weights().values())


def test_vit_s_16_with_a_hidden_layer_has_its_published_number_of_weights() -> None:
    assert num_weights(model(size="S", hidden_dim=384)) == 22_122_472
    assert num_weights(model(size="S")) == 21_974_632


def test_learned_positions_and_a_class_token_add_their_vectors() -> None:
    plain = num_weights(model(size="S"))
    assert num_weights(model(size="S", positions="learned")) == plain + 196 * 384
    assert num_weights(model(size="S", pooling="first")) == plain + 384


def test_the_original_vit_has_its_known_numbers_of_weights() -> None:
    """Those of timm's vit_tiny_patch16_224 and vit_base_patch16_224."""
    original: Any = {"positions": "learned", "pooling": "first", "token_position": True}
    assert num_weights(model(size="Ti", **original)) == 5_717_416
    assert num_weights(model(size="B", **original)) == 86_567_656
    with pytest.raises(ParamError, match="token_position=True is for pooling='first'"):
        vit(size="S", num_classes=10, token_position=True)


def normalize(x: Any, weights: dict[str, Any], where: str) -> Any:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)
    return x * weights[f"{where}/scale"] + weights[f"{where}/bias"]


def attend(x: Any, weights: dict[str, Any], where: str) -> Any:
    query, key, value = (
        np.einsum("btd,dnh->bnth", x, weights[f"{where}/w_{name}"])
        + weights[f"{where}/b_{name}"][:, None]
        for name in ("query", "key", "value")
    )
    shares = np.exp(query @ key.swapaxes(2, 3) / math.sqrt(query.shape[-1]))
    shares /= shares.sum(-1, keepdims=True)
    averages = np.einsum("bnth,nhd->btd", shares @ value, weights[f"{where}/w_output"])
    return averages + weights[f"{where}/b_output"]


def feed_forward(x: Any, weights: dict[str, Any], where: str) -> Any:
    hidden = x @ weights[f"{where}/w_in"] + weights[f"{where}/b_in"]
    hidden = hidden * (1 + erf(hidden / math.sqrt(2))) / 2
    return hidden @ weights[f"{where}/w_out"] + weights[f"{where}/b_out"]


def test_it_computes_its_formula(draw, traced_flops, monkeypatch) -> None:
    monkeypatch.setitem(SIZES, "tiny", Encoder(dim=8, num_layers=2, num_heads=2))
    fields: Any = {"positions": "learned", "pooling": "first", "hidden_dim": 5}
    layer = model(size="tiny", num_classes=3, image_shape=(4, 6, 1), patch=2, **fields)
    drawn, images = draw(layer), np.random.default_rng(0).normal(size=[2, 4, 6, 1])
    w = {name: value.numpy().astype(float) for name, value in drawn.items()}

    patches = images.reshape(2, 2, 2, 3, 2).swapaxes(2, 3).reshape(2, 6, 4)
    x = patches @ w["layers/0/conv/w"].reshape(4, 8) + w["layers/0/conv/b"]
    x = x + w["layers/1/vectors"]
    x = np.concatenate([np.tile(w["layers/2/token"], [2, 1, 1]), x], axis=1)
    for i in range(2):
        where = f"layers/3/layers/{i}"
        x = x + attend(normalize(x, w, f"{where}/attention_norm"), w, f"{where}/attention")
        x = x + feed_forward(normalize(x, w, f"{where}/ffn_norm"), w, f"{where}/ffn")
    x = normalize(x, w, "layers/4")
    vector = np.tanh(x[:, 0] @ w["layers/5/hidden/w"] + w["layers/5/hidden/b"])
    expected = vector @ w["layers/5/linear/w"] + w["layers/5/linear/b"]
    images = images.astype(np.float32)
    found = apply(layer, drawn, images)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert layer.output_shape(images.shape) == tuple(found.shape) == (2, 3)
    assert layer.flops(images.shape) == traced_flops(layer, images)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": "XL"}, "size='XL' is not one of XXS, Ti, S, B, L"),
        (
            {"size": "S", "positions": "rotary"},
            "positions='rotary' is not one of sinusoid, learned",
        ),
        ({"size": "S", "patch": 15}, "images of 224 x 224 cannot be cut into patches of 15 x 15"),
        ({"size": "S", "patch": 0}, "images of 224 x 224 cannot be cut into patches of 0 x 0"),
    ],
)
def test_what_makes_no_network_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        vit(num_classes=10, **fields)
