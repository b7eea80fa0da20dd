"""ViT-S/16 at its true size computes what timm's does, from the same weights."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from lingo.layers.context import apply
from params.image.vit import s16
from tools.oracles.vit import draw_images, draw_weights

FILE = pathlib.Path(__file__).parent / "vit_s16.npz"
NUM_LAYERS, DIM, HIDDEN, HEADS, PLACES = 12, 384, 1536, (6, 64), 196


def timm_shapes(*, has_token: bool) -> dict[str, tuple[int, ...]]:
    shapes = {
        "patch_embed.proj.weight": (DIM, 3, 16, 16),
        "pos_embed": (1, has_token + PLACES, DIM),
        "norm.weight": (DIM,),
        "head.weight": (1000, DIM),
    }
    if has_token:
        shapes["cls_token"] = (1, 1, DIM)
    for i in range(NUM_LAYERS):
        shapes |= {f"blocks.{i}.{norm}.weight": (DIM,) for norm in ("norm1", "norm2")}
        shapes |= {
            f"blocks.{i}.attn.qkv.weight": (3 * DIM, DIM),
            f"blocks.{i}.attn.proj.weight": (DIM, DIM),
            f"blocks.{i}.mlp.fc1.weight": (HIDDEN, DIM),
            f"blocks.{i}.mlp.fc2.weight": (DIM, HIDDEN),
        }
    biases = {
        name.removesuffix("weight") + "bias": shape[:1]
        for name, shape in shapes.items()
        if name.endswith(".weight")
    }
    return shapes | biases


def as_lingo(drawn: dict[str, np.ndarray], *, has_token: bool) -> dict[str, Any]:
    """Returns timm's weights under the names of lingo's, in their shapes."""
    where = "model/layers"
    found: dict[str, Any] = {
        f"{where}/0/conv/w": drawn["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        f"{where}/0/conv/b": drawn["patch_embed.proj.bias"],
        f"{where}/1/vectors": drawn["pos_embed"][0, has_token:],
    }
    if has_token:
        found[f"{where}/2/token"] = drawn["cls_token"][0, 0]
    stack, norm, head = (f"{where}/{i + has_token}" for i in (2, 3, 4))
    found |= {f"{norm}/scale": drawn["norm.weight"], f"{norm}/bias": drawn["norm.bias"]}
    found |= {f"{head}/linear/w": drawn["head.weight"].T, f"{head}/linear/b": drawn["head.bias"]}
    for i in range(NUM_LAYERS):
        layer = {
            name.removeprefix(f"blocks.{i}."): value
            for name, value in drawn.items()
            if name.startswith(f"blocks.{i}.")
        }
        found |= {f"{stack}/layers/{i}/{name}": w for name, w in lingo_layer(layer).items()}
    return found


def lingo_layer(layer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {
        "attention/w_output": layer["attn.proj.weight"].T.reshape(*HEADS, DIM),
        "attention/b_output": layer["attn.proj.bias"],
        "ffn/w_in": layer["mlp.fc1.weight"].T,
        "ffn/b_in": layer["mlp.fc1.bias"],
        "ffn/w_out": layer["mlp.fc2.weight"].T,
        "ffn/b_out": layer["mlp.fc2.bias"],
    }
    for i, name in enumerate(("query", "key", "value")):
        rows = slice(i * DIM, (i + 1) * DIM)
        found[f"attention/w_{name}"] = layer["attn.qkv.weight"][rows].T.reshape(DIM, *HEADS)
        found[f"attention/b_{name}"] = layer["attn.qkv.bias"][rows].reshape(HEADS)
    for ours, theirs in (("attention_norm", "norm1"), ("ffn_norm", "norm2")):
        found |= {
            f"{ours}/scale": layer[f"{theirs}.weight"],
            f"{ours}/bias": layer[f"{theirs}.bias"],
        }
    return found


@pytest.mark.parametrize(("case", "pooling"), [("plain", "mean"), ("token", "first")])
def test_vit_s16_computes_the_logits_of_timm(case: str, pooling: Any) -> None:
    task = s16(positions="learned", pooling=pooling, head="linear").build().task
    has_token = pooling == "first"
    weights = as_lingo(draw_weights(timm_shapes(has_token=has_token)), has_token=has_token)
    shapes = {name: tuple(spec.shape) for name, spec in task.weights().items()}
    assert {name: value.shape for name, value in weights.items()} == shapes
    model = {name.removeprefix("model/"): value for name, value in weights.items()}
    found = apply(task.p.model.build(), model, draw_images())[0]
    with np.load(FILE) as file:
        np.testing.assert_allclose(found, file[case], rtol=0, atol=1e-4)
