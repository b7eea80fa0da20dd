"""The order of examples in an epoch: a function of seed and epoch, without state.

Axes: B examples.
"""

from __future__ import annotations

import functools

import numpy as np

from lingo.ops import random


def permutation(size: int, *, seed: int, epoch: int, name: str) -> np.ndarray:
    """Returns a permutation of 0, ..., size - 1, int64 [size]: a function of the arguments."""
    key = random.fold(random.fold(random.root_key(seed), random.text_hash(name)), epoch)
    return np.argsort(random.host_bits(key, 0, size), kind="stable")


class EpochOrder:
    """A new order of examples in each epoch, or their original order without `shuffle`."""

    def __init__(self, size: int, *, seed: int, name: str, shuffle: bool) -> None:
        """Orders with the same seed and size, but other names, differ."""
        self._size, self._seed, self._name, self._shuffle = size, seed, name, shuffle
        self._order = functools.lru_cache(maxsize=2)(self._draw)

    def indices(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the index, int64 [B] in 0..size - 1, of the example with each number, int64 [B].

        Numbers continue from epoch to epoch.
        """
        epochs, indices = np.divmod(numbers, self._size)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            indices[here] = self._order(epoch)[indices[here]]
        return indices

    def _draw(self, epoch: int) -> np.ndarray:
        """Returns the order of an epoch, int64 [size]."""
        if not self._shuffle:
            return np.arange(self._size)
        return permutation(self._size, seed=self._seed, epoch=epoch, name=self._name)
