"""Writes what timm's ViT-S/16 computes, with which a test compares lingo's at its true size.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch timm
    /tmp/oracle/bin/python tools/oracles/vit.py

It runs without lingo, in an environment of its own, and writes tests/params/vit_s16.npz: for each
case logits, float32 [2, 1000], and their versions. Weights and images are not written: both sides
draw them with `draw_weights` and `draw_images`, from the same seeds. Last run with timm 1.0.31 and
torch 2.14.1.

    plain    no class token, the mean of all patches, normalized before the mean, a linear head
    token    a class token, whose row of timm's positions is zero: lingo's token has no position

timm computes the mean before the last normalization if it is told `global_pool="avg"` alone (its
`fc_norm`); with `fc_norm=False` it normalizes first, as big_vision and lingo do.
"""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Mapping

import numpy as np

FILE = pathlib.Path(__file__).parents[2] / "tests/params/vit_s16.npz"
CASES = {
    "plain": {"global_pool": "avg", "class_token": False, "fc_norm": False},
    "token": {"global_pool": "token", "class_token": True},
}


def draw_weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """Returns float32 weights by timm's names, in whose sorted order they are drawn.

    The deviation of a matrix keeps the size of what it is multiplied with; scales of norms are
    around 1. All others are 0.1 on average.
    """
    random, weights = np.random.default_rng(seed), {}
    for name in sorted(shapes):
        shape = shapes[name]
        values = random.standard_normal(shape, np.float32)
        if name.endswith(".weight") and len(shape) > 1:
            values *= np.float32(np.prod(shape[1:]) ** -0.5)
        else:
            values *= np.float32(0.1)
        if "norm" in name and name.endswith(".weight"):
            values += np.float32(1)
        weights[name] = values
    return weights


def draw_images(seed: int = 1) -> np.ndarray:
    """Returns two images, float32 [2, 224, 224, 3]."""
    return np.random.default_rng(seed).standard_normal([2, 224, 224, 3], np.float32)


def main() -> None:
    """Writes the logits of each case."""
    timm, torch = importlib.import_module("timm"), importlib.import_module("torch")
    images = torch.from_numpy(draw_images()).permute(0, 3, 1, 2)
    logits = {}
    for case, fields in CASES.items():
        model = timm.create_model("vit_small_patch16_224", pretrained=False, **fields).eval()
        drawn = draw_weights({name: tuple(w.shape) for name, w in model.named_parameters()})
        if fields["class_token"]:
            drawn["pos_embed"][:, 0] = 0
        model.load_state_dict({name: torch.from_numpy(w) for name, w in drawn.items()})
        with torch.no_grad():
            logits[case] = model(images).numpy()
        print(f"{case}: {sum(w.size for w in drawn.values()):,} weights")
    np.savez_compressed(FILE, allow_pickle=False, **logits)


if __name__ == "__main__":
    main()
