"""Paths that name weights, the same ones whether a program stacks the tensors of layers or not.

A path is attribute names and indices joined by "/", such as `model/stack/layers/3/ffn/w_in`. A
program may store the weights of identical layers in one tensor, stacked along a leading axis. The
name of this tensor, its *program path*, has a slice in place of the index:
`model/stack/layers/[0:12]/ffn/w_in` has 12 weights. `[1:12:2]` stands for every second layer.
Checkpoints and experiments always name single weights, so they do not depend on the stacking.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lingo.config.params import suggest
from lingo.ops import random

_SLICE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")


def join(*parts: str) -> str:
    """Joins path parts, skipping empty ones."""
    return "/".join(p for p in parts if p)


def index_range(part: str) -> range | None:
    """Returns the layer indices of a path part such as "[0:12]"; None if it is not a slice."""
    match = _SLICE.fullmatch(part)
    return range(int(match[1]), int(match[2]), int(match[3] or 1)) if match else None


def slice_part(start: int, stop: int, step: int = 1) -> str:
    """Returns the path part, such as "[0:12]", for layers start, start + step, ... below stop."""
    return f"[{start}:{stop}]" if step == 1 else f"[{start}:{stop}:{step}]"


@functools.cache
def stack_shape(path: str) -> tuple[int, ...]:
    """Returns the sizes of the stacked axes of the tensor at a program path; () without any."""
    if "[" not in path:  # fast path: there may be many names of single weights
        return ()
    return tuple(len(r) for part in path.split("/") if (r := index_range(part)) is not None)


def scale_of(where: str) -> str:
    """Returns the path of the scale of an 8-bit weight, from the weight's program path."""
    return f"{where}:scale"


def names(path: str) -> list[str]:
    """Returns the paths of the single weights in the tensor at a program path.

    They are in row-major order of the stacked axes.
    """
    choices = [
        list(map(str, r)) if (r := index_range(p)) is not None else [p] for p in path.split("/")
    ]
    return ["/".join(parts) for parts in itertools.product(*choices)]


def key(root: random.Key, path: str, indices: Mapping[str, Any] | None = None) -> random.Key:
    """Derives the random key of a path from the key `root`.

    A layer gets the same key whether it is stacked with others or not. For stacked layers,
    `indices` maps each program path that ends in a slice to the index of the current layer, an int
    or an int32 tensor.
    """
    prefix = ""
    for part in path.split("/"):
        prefix = join(prefix, part)
        if index_range(part) is not None:
            root = random.fold(root, (indices or {})[prefix])
        else:
            root = random.fold(root, int(part) if part.isdigit() else random.text_hash(part))
    return root


class LayerWeights(Mapping[str, np.ndarray]):
    """Path of a single weight -> float32 array, a read-only view of a program's stacked tensor."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        """Takes the program's tensors: program path -> float32 [*stacked axes, ...]."""
        self._weights = weights
        self._places = {
            name: (where, i) for where in weights for i, name in enumerate(names(where))
        }

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._places:
            raise KeyError(f"there is no weight {name!r}.{suggest(str(name), self._places)}")
        where, index = self._places[name]
        stacked = self._weights[where]
        shape = stacked.shape[len(stack_shape(where)) :]
        view = stacked.reshape(-1, *shape)[index, ...]
        view.flags.writeable = False
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"<{len(self)} weights, by path>"
