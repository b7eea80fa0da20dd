"""Data of which a part can be held out, so that evaluation never sees training data.

Axes: N items.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np

from lingo.config.params import Configurable, ParamError, fields


class Splittable(Configurable):
    """Items of which those with the smallest hashes are held out.

    Whether an item is held out depends on it alone. A larger `heldout_fraction` holds out every
    item that a smaller one does.
    """

    split: Literal["all", "train", "heldout"] = "all"  # train and heldout share nothing
    heldout_fraction: float = 0.05  # share that is held out, chosen by a hash

    def check(self) -> None:
        if not 0 < self.p.heldout_fraction < 1:
            raise ParamError(f"heldout_fraction={self.p.heldout_fraction} is not between 0 and 1")

    def describe(self) -> str:
        """Returns the data in one line: its class, and the fields that differ from defaults."""
        values = {name: getattr(self.p, name) for name in fields(self.p.cls)}
        changes = [f"{n}={v!r}" for n, v in values.items() if v != fields(self.p.cls)[n].default]
        return f"{type(self).__name__}({', '.join(changes)})"

    def in_split(self, hashes: np.ndarray) -> np.ndarray:
        """Returns which items are in this split, bool [N], by their `split_hash`, uint64 [N]."""
        if self.p.split == "all":
            return np.ones(len(hashes), bool)
        heldout = hashes < np.uint64(self.p.heldout_fraction * 2.0**64)
        return heldout == (self.p.split == "heldout")


def split_hash(data: bytes) -> int:
    """Returns the first 8 bytes of the SHA-256 of some data, as a number below 2**64."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
