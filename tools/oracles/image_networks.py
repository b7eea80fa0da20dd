"""Writes what image networks of timm and torchvision compute, for tests of `lingo import`.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch torchvision timm safetensors
    /tmp/oracle/bin/python -m tools.oracles.image_networks write
    /tmp/oracle/bin/python -m tools.oracles.image_networks draw FOLDER timm.resnet50
    /tmp/oracle/bin/python -m tools.oracles.image_networks check FOLDER timm.resnet50

It runs without lingo, in an environment of its own. `write` writes a file for each network in
`NETWORKS` to tests/tasks/pretrained/networks:

    versions  of torch and of the library
    size      height and width of the images
    gain      of `draw_tensors`
    shapes    name -> shape of each tensor of the state dict
    logits    float32 [2, 10], of two images

Weights and images are not written: both sides draw them with `draw_tensors` and `draw_images`.
`draw` writes the drawn weights of any network as FOLDER/model.safetensors, with config.json as timm
writes it and logits.npy; `check` compares the logits of such a file with logits.npy of the folder.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

FOLDER = pathlib.Path(__file__).parents[2] / "tests/tasks/pretrained/networks"
NUM_CLASSES = 10
NETWORKS = {  # name -> height and width of the images; odd sizes and even ones pad differently
    "torchvision.resnet18": (64, 75),
    "timm.resnet50": (64, 64),
    "timm.efficientnet_b0": (64, 75),
    "timm.tf_efficientnet_b0": (64, 75),
    "torchvision.efficientnet_b0": (64, 64),
    "torchvision.efficientnet_b5": (64, 64),
    "timm.vit_tiny_patch16_224": (224, 224),
    "torchvision.vit_b_32": (224, 224),
}


def draw_tensors(
    shapes: Mapping[str, tuple[int, ...]], gain: float, seed: int = 0
) -> dict[str, np.ndarray]:
    """Returns tensors by their names, in whose sorted order they are drawn.

    The variance of a matrix or kernel is `gain` divided by the number of its inputs. Scales of
    norms and variances are around 1, means and biases around 0, and counts of steps are 7. All
    others are float32.
    """
    random, tensors = np.random.default_rng(seed), {}
    for name in sorted(shapes):
        shape = shapes[name]
        values = random.standard_normal(shape, np.float32)
        if name.endswith("num_batches_tracked"):
            tensors[name] = np.full(shape, 7, np.int64)
        elif name.endswith("running_var"):
            tensors[name] = np.exp(np.float32(0.3) * values)
        elif len(shape) > 1 and name.endswith("weight"):
            tensors[name] = values * np.float32((gain / np.prod(shape[1:])) ** 0.5)
        elif name.endswith("weight") and len(shape) == 1:
            tensors[name] = 1 + np.float32(0.1) * values
        else:
            tensors[name] = np.float32(0.1) * values
    return tensors


def draw_images(size: tuple[int, int], seed: int = 1) -> np.ndarray:
    """Returns two images, float32 [2, height, width, 3], as a network sees them."""
    return np.random.default_rng(seed).standard_normal([2, *size, 3], np.float32)


def make_model(name: str, num_classes: int = NUM_CLASSES) -> Any:
    """Returns the network, by the name of its library and its own."""
    library, _, network = name.partition(".")
    if library == "timm":
        model = _import("timm").create_model(network, pretrained=False, num_classes=num_classes)
    else:
        model = getattr(_import("torchvision").models, network)(num_classes=num_classes)
    return model.eval()


class Drawn(NamedTuple):
    """The tensors of a network, and what it computes with them."""

    gain: float
    tensors: dict[str, np.ndarray]
    logits: np.ndarray  # float32 [2, number of classes]


def load_drawn(model: Any, size: tuple[int, int]) -> Drawn:
    """Draws the tensors of a model, with a gain for which the logits of two images differ by 1.

    With other gains the logits of deep networks would not depend on the image, or overflow.
    """
    torch, images = _import("torch"), draw_images(size)
    shapes = {name: tuple(w.shape) for name, w in model.state_dict().items()}
    low, high = 0.1, 10.0
    for _ in range(20):
        gain = round(float(np.sqrt(low * high)), 4)
        drawn = draw_tensors(shapes, gain)
        model.load_state_dict({name: torch.from_numpy(w) for name, w in drawn.items()})
        logits = compute_logits(model, images)
        spread = np.abs(logits[0] - logits[1]).max()
        if 0.5 <= spread <= 2:
            return Drawn(gain, drawn, logits)
        low, high = (gain, high) if spread < 1 else (low, gain)
    raise RuntimeError("no gain gives logits of a usual size")


def compute_logits(model: Any, images: np.ndarray) -> np.ndarray:
    """Returns the logits of images [B, H, W, 3], float32 [B, number of classes]."""
    torch = _import("torch")
    with torch.no_grad():
        return model(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()).numpy()


def write(name: str) -> None:
    """Writes the file of a network."""
    size = NETWORKS[name]
    drawn = load_drawn(make_model(name), size)
    content = {
        "versions": {n: _import(n).__version__ for n in ("torch", name.partition(".")[0])},
        "size": size,
        "gain": drawn.gain,
        "shapes": {name: list(value.shape) for name, value in drawn.tensors.items()},
        "logits": [[float(f"{x:.8g}") for x in row] for row in drawn.logits],
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(content) + "\n")
    print(f"{name}: gain {drawn.gain}, logits to {np.abs(drawn.logits).max():.3g}")


def draw(folder: pathlib.Path, name: str) -> None:
    """Writes a folder with the drawn weights of a network, its settings and its logits."""
    model = make_model(name)
    drawn = load_drawn(model, _image_size(model))
    folder.mkdir(parents=True, exist_ok=True)
    writer = importlib.import_module("safetensors.numpy")
    writer.save_file(drawn.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    np.save(folder / "logits.npy", drawn.logits)
    if name.startswith("timm."):
        hub = importlib.import_module("timm.models._hub")
        hub.save_config_for_hf(model, folder / "config.json")


def check(folder: pathlib.Path, name: str, expected: pathlib.Path) -> float:
    """Returns by how much the logits of a folder's weights differ from those that `draw` wrote.

    Raises RuntimeError if a tensor is missing, unknown or of another shape.
    """
    if name.startswith("timm.") and (folder / "config.json").exists():
        timm = _import("timm")
        model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    else:
        tensors = importlib.import_module("safetensors.torch").load_file(
            folder / "model.safetensors"
        )
        model = make_model(name)
        model.load_state_dict(tensors)
    logits = compute_logits(model, draw_images(_image_size(model)))
    return float(np.abs(logits - np.load(expected / "logits.npy")).max())


def _image_size(model: Any) -> tuple[int, int]:
    """Returns the height and width of the images for a model: its own, or 64 if it takes any."""
    side = getattr(model, "image_size", None)  # of torchvision's Vision Transformers
    if side is None and hasattr(model, "patch_embed"):
        side = model.patch_embed.img_size[0]
    return (side or 64, side or 64)


def _import(name: str) -> Any:
    return importlib.import_module(name)


def main(arguments: list[str]) -> None:
    """Runs one of the three commands."""
    parser = argparse.ArgumentParser(prog="python -m tools.oracles.image_networks")
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write what the networks compute")
    writing.add_argument("names", nargs="*", help=f"all, or some of {', '.join(NETWORKS)}")
    for command in ("draw", "check"):
        one = commands.add_parser(command)
        one.add_argument("folder", type=pathlib.Path)
        one.add_argument("name", help="such as timm.resnet50")
        one.add_argument("--expected", type=pathlib.Path, help="folder that has logits.npy")
    values = parser.parse_args(arguments)
    if values.command == "write":
        for name in values.names or NETWORKS:
            write(name)
    elif values.command == "draw":
        draw(values.folder, values.name)
    else:
        difference = check(values.folder, values.name, values.expected or values.folder)
        print(f"{values.folder}: logits differ by at most {difference:.3g}")


if __name__ == "__main__":
    main(sys.argv[1:])
