"""Clicks drawn at random from a known model.

    ClickInput.params(split="train", vocab_sizes=(1000, 50, 4), batch_size=256)

Axes: B examples of a batch, N numbers, T categorical features.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.data.array_spec import ArraySpec
from lingo.data.example_input import ExampleInput
from lingo.data.index import Progress
from lingo.data.input import Input
from lingo.ops import random

_PAIRED = 6  # the first 6 categorical features; each pair adds a product to the logit
_PROBED = 64  # examples in the digest that identifies the data


class ClickInput(ExampleInput):
    """Examples of N numbers and T categories, and whether there was a click.

    Numbers are uniform with mean 0 and variance 1. Category v of a feature is drawn with a
    probability proportional to 1 / sqrt(v). The planted logit is linear in the numbers; each
    category adds a term, and each pair of the first six features adds a product of two factors, one
    per category. The sigmoid of the logit is the probability of a click. This model is the same for
    all seeds and splits. It takes no memory, even for millions of categories: its weights are
    functions of feature and category. Examples are functions of (seed, split, number); no two are
    the same.

    Batches: `numbers`, float32 [B, N]; `categories`, int32 [B, T]; `labels`, int32 [B];
    `planted_logits`, float32 [B].
    """

    split: Literal["train", "heldout"] = "train"  # they share no example
    vocab_sizes: tuple[int, ...]  # V of each categorical feature
    num_numbers: int = 13  # N
    num_clicks: int = 2**20  # examples of a pass, with or without a click
    bias: float = -1.0  # the planted logit without features
    scale: float = 1.4  # standard deviation of the planted logit, approximately

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "vocab_sizes", "num_numbers", "num_clicks")
        ranges.check_not_negative(self.p, "scale")

    def offers(self) -> dict[str, Any]:
        known = {"num_numbers": self.p.num_numbers, "vocab_sizes": self.p.vocab_sizes}
        return known if self.p.repeat else known | {"num_eval_examples": self.p.num_clicks}

    @property
    def declares_late(self) -> bool:
        return self.p.augment is not None

    def specs(self) -> dict[str, ArraySpec]:
        if self.declares_late:
            return super().specs()
        p, size = self.p, self.p.batch_size
        return Input.specs(self) | {
            "numbers": ((size, p.num_numbers), "float32"),
            "categories": ((size, len(p.vocab_sizes)), "int32"),
            "labels": ((size,), "int32"),
            "planted_logits": ((size,), "float32"),
        }

    def prepare(self, *, progress: Progress | None = None) -> None:
        del progress  # nothing is read

    def num_examples(self) -> int:
        return self.p.num_clicks

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        p = self.p
        root = random.fold(random.root_key(p.seed), random.text_hash(f"clicks {p.split}"))
        keys = random.fold(random.fold(root, numbers >> 32), numbers & 0xFFFFFFFF)
        values = _standard(random.fold(keys, 0), p.num_numbers)
        drawn = (random.bits(random.fold(keys, 1), len(p.vocab_sizes)) + 0.5) * 2.0**-32
        categories = (np.square(drawn) * p.vocab_sizes).astype(np.int32)
        logits = self.planted_logits(values, categories)
        clicks = random.uniform(random.fold(keys, 2)) < 1 / (1 + np.exp(-logits))
        return {
            "numbers": values.astype(np.float32),
            "categories": categories,
            "labels": clicks.astype(np.int32),
            "planted_logits": logits.astype(np.float32),
        }

    def planted_logits(self, numbers: np.ndarray, categories: np.ndarray) -> np.ndarray:
        """Returns the logits of the planted model, float64 [B].

        Args:
            numbers: float [B, N].
            categories: int32 [B, T].
        """
        p, num_features = self.p, categories.shape[1]
        root = random.fold(random.root_key(0), random.text_hash("planted clicks"))
        slopes = _standard(random.fold(root, 0), p.num_numbers)  # [N]
        features = random.fold(random.fold(root, 1), np.arange(num_features, dtype=np.uint32))
        terms, factors = np.moveaxis(_standard(random.fold(features, categories), 2), -1, 0)
        factors = factors[:, :_PAIRED]  # [B, up to 6]; all pairs: (sum^2 - sum of squares) / 2
        pairs = (np.square(factors.sum(1)) - np.square(factors).sum(1)) / 2
        num_pairs = max(1, math.comb(factors.shape[1], 2))
        logits = np.sqrt(_SHARES.numbers / p.num_numbers) * (numbers @ slopes)
        logits += np.sqrt(_SHARES.categories / num_features) * terms.sum(1)
        logits += np.sqrt(_SHARES.pairs / num_pairs) * pairs
        return p.bias + p.scale * logits

    def fingerprint(self) -> dict[str, Any]:
        """Returns the number of examples, their bytes, and a digest of a few of them."""
        digest, total = hashlib.sha256(), 0
        for array in self.read(np.arange(_PROBED)).values():
            digest.update(array.tobytes())
            total += array.nbytes
        return {
            "source": f"{self.p.split} clicks of a planted model",
            "examples": self.p.num_clicks,
            "bytes": total * self.p.num_clicks // _PROBED,
            "digest": digest.hexdigest(),
        }


class _Shares(NamedTuple):
    """Shares of the planted logit's variance; they add up to 1."""

    numbers: float
    categories: float
    pairs: float


_SHARES = _Shares(numbers=0.35, categories=0.55, pairs=0.1)


def _standard(key: random.Key, *sizes: int) -> np.ndarray:
    """Draws float64 [..., *sizes], uniform with mean 0 and variance 1, from keys [...]."""
    return (2.0 * random.uniform(key, *sizes) - 1.0) * np.sqrt(3.0)
