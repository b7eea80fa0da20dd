"""Weights of networks, drawn as for the values of timm and torchvision."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tools.oracles.image_networks import FOLDER, draw_tensors


@functools.cache
def drawn(name: str) -> dict[str, np.ndarray]:
    content = json.loads((FOLDER / f"{name}.json").read_text())
    return draw_tensors(content["shapes"], content["gain"])


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    """Returns a function that writes a network's file of ten classes, with changed tensors."""

    def write(name: str = "torchvision.resnet18", **changes: Any) -> pathlib.Path:
        tensors = {n: v for n, v in drawn(name).items() if changes.get(n, v) is not None}
        tensors |= {n: v for n, v in changes.items() if v is not None}
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return tmp_path / "model.safetensors"

    return write
