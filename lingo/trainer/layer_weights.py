"""The weights of layers by their own paths, also where a program stacks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from lingo.config.params import suggest
from lingo.layers import path


class LayerWeights(Mapping[str, np.ndarray]):
    """The weights of layers, path -> float32 array, cut out of those of a program when read."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        """Takes program path -> float32 [*stacked axes, ...]."""
        self._weights = weights
        self._places = {
            name: (where, i) for where in weights for i, name in enumerate(path.names(where))
        }

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._places:
            raise KeyError(f"there is no weight {name!r}.{suggest(str(name), self._places)}")
        where, index = self._places[name]
        stacked = self._weights[where]
        shape = stacked.shape[len(path.stack_shape(where)) :]
        view = stacked.reshape(-1, *shape)[index, ...]
        view.flags.writeable = False
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"<{len(self)} weights, by path>"
