"""Variational noise: in training, layers compute with noisy weights (Graves 2011).

    loss and gradients      at w + stddev * noise, new noise at each step
    the optimizer, decay, averages, evaluations and checkpoints     w

Noise is a function of seed, step, a weight's path and its element. So it is the same on every
device, for all parts of a batch, and whether a program stacks layers or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.layers import path
from lingo.ops import random
from lingo.optim.optimizer import Weight
from lingo.optim.pattern import check_patterns, check_used, name_field

_NAME = "weight_noise"


class WeightNoise(Configurable):
    """Adds normal noise to weights in training, as Lingvo's `vn` with `global_vn` does.

    Lingvo adds it to some kinds of layers, such as LSTMs, attention, embeddings and softmax layers;
    here `pattern` selects weights. One noise serves all uses of a weight in a step.
    """

    stddev: float  # standard deviation of the noise
    start_step: int = 0  # the first step with noise; steps count from 0
    pattern: str = ".*"  # regex for the whole names of weights that get noise

    def check(self) -> None:
        ranges.check_positive(self.p, "stddev")
        ranges.check_not_negative(self.p, "start_step")
        check_patterns([self.p.pattern])

    def check_weights(self, weights: Iterable[Weight]) -> None:
        """Raises ParamError if the pattern matches none of a model's weights, or a sparse table."""
        names = {name: weight.sparse for weight in weights for name in weight.names}
        with name_field(f"{_NAME}.pattern"):
            check_used([self.p.pattern], list(names))
        for name, is_sparse in names.items():
            if is_sparse and re.fullmatch(self.p.pattern, name):
                raise ParamError(
                    f"{name} is a sparse table, but noise is drawn for all of a weight: choose a"
                    f" {_NAME}.pattern that leaves it out, or declare it without sparse"
                    " (EmbeddingTables.sparse_from=None)"
                )

    def add(
        self, weights: Mapping[str, tf.Tensor], key: random.Key, step: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns weights with the noise of a step.

        Args:
            weights: program path -> float32 [*stacked axes, ...].
            key: random key of (seed, step).
            step: int32 scalar, the number of steps done before.
        """
        root = random.fold(key, random.text_hash(_NAME))
        stddev = tf.where(step >= self.p.start_step, self.p.stddev, 0.0)
        noisy = dict(weights)
        for where, weight in weights.items():
            matched = [bool(re.fullmatch(self.p.pattern, name)) for name in path.names(where)]
            if any(matched):
                noisy[where] = weight + stddev * _draw(root, where, weight, matched)
        return noisy


def _draw(root: random.Key, where: str, weight: tf.Tensor, matched: list[bool]) -> tf.Tensor:
    """Returns unit normal noise like a weight, 0 for stacked layers that are not matched."""
    stacked = path.stack_shape(where)
    key = path.key(root, where, _stack_indices(where, stacked))
    noise = random.normal(key, *weight.shape[len(stacked) :])
    if all(matched):
        return noise
    mask = np.array(matched, np.float32).reshape(stacked)
    return noise * mask[(..., *[None] * (len(weight.shape) - len(stacked)))]


def _stack_indices(where: str, stacked: tuple[int, ...]) -> dict[str, Any]:
    """Returns the program path of each stack -> the layers' indices, int32 [stacked axes]."""
    indices, prefix = dict[str, Any](), ""
    for part in where.split("/"):
        prefix = path.join(prefix, part)
        if (own := path.index_range(part)) is not None:
            shape = np.ones(len(stacked), int)
            shape[len(indices)] = len(own)
            indices[prefix] = np.array(own, np.int32).reshape(shape)
    return indices
