"""Routers with weights: a softmax over experts, computed with care.

Axes: B batch, T positions, D model width, G groups, S tokens of a group, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers import context
from lingo.layers.context import annotate
from lingo.layers.initial import FanIn, Initializer
from lingo.layers.moe.router import Router
from lingo.layers.moe.routing import Tokens
from lingo.ops import random
from lingo.ops import routing as ops
from lingo.ops.shape import size_of


class Scores(NamedTuple):
    """What a learned router thinks of each token.

    Attributes:
        logits: float32 [G, S, E].
        probabilities: float32 [G, S, E], their softmax.
        valid: bool [G, S].
        rows: float32 scalar, rows of the batch in a group, a fraction if a row has several groups.
    """

    logits: tf.Tensor
    probabilities: tf.Tensor
    valid: tf.Tensor
    rows: tf.Tensor


class LearnedRouter(Router, kind=True):
    """The probabilities of experts are softmax(x w), in float32 whatever the mixture computes in.

    (Selective precision: Fedus et al. 2022, sec. 2.4. A `dtype` set here is obeyed, though; and x w
    is as precise as the device's products of float32 are.)

    Weights:
        w: [D, E].
    """

    jitter: float = 0.0  # e: in training each input is multiplied by U[1 - e, 1 + e]; Switch: 0.01
    z_loss: float = 0.0  # coefficient of the mean square of log sum exp(logits); ST-MoE: 0.001
    init: Initializer = FanIn.params(scale=0.1)  # of w; small, as in Fedus et al. 2022, sec. 2.4

    def check(self) -> None:
        ranges.check_fraction(self.p, "jitter")
        ranges.check_not_negative(self.p, "z_loss")

    def setup(self) -> None:
        super().setup()
        shape = [self.p.dim, self.p.num_experts]
        self.w = self.weight("w", shape, axes=("embed", None), init=self.p.init.build())

    def scores(self, x: tf.Tensor, tokens: Tokens) -> Scores:
        """Returns the scores of all tokens; hands out their z-loss and entropy.

        Args:
            x: [B, T, D], any float type.
            tokens: which of them count, and how they are grouped.
        """
        logits = tf.tensordot(self._jitter(tf.cast(x, self.p.dtype)), self.w, 1)
        logits = ops.group_tokens(annotate(logits, "batch", "length", None), tokens.group_size)
        probabilities = tf.cast(tf.nn.softmax(logits), tf.float32)
        valid = ops.group_tokens(tokens.valid, tokens.group_size)
        rows = tf.cast(tokens.group_size, tf.float32) / tf.cast(size_of(x, 1), tf.float32)
        scores = Scores(tf.cast(logits, tf.float32), probabilities, valid, rows)
        self.hand_out_loss("z_loss", ops.z_loss(scores.logits, valid), scores, self.p.z_loss)
        count = tf.cast(valid, tf.float32)
        total = tf.reduce_sum(ops.entropy(scores.logits) * count)
        self.side_metric("moe/entropy", {"sum": total, "weight": tf.reduce_sum(count)})
        return scores

    def hand_out_loss(
        self, name: str, values: tf.Tensor, scores: Scores, coefficient: float
    ) -> None:
        """Hands out a loss, the mean over groups times the rows, and a metric, their mean.

        Args:
            name: `moe/<name>` is the metric, `moe_<name>` the loss.
            values: float32 [G], 0 for a group of padding.
            scores: of the tokens.
            coefficient: of the loss.
        """
        total = tf.reduce_sum(values)
        if coefficient:
            self.side_loss(f"moe_{name.removesuffix('_loss')}", coefficient * scores.rows * total)
        groups = tf.reduce_sum(tf.cast(tf.reduce_any(scores.valid, axis=-1), tf.float32))
        self.side_metric(f"moe/{name}", {"sum": total, "weight": groups})

    def flops(self, shape: Sequence[int]) -> int:
        return 2 * math.prod(shape) * self.p.num_experts

    def draw(self, name: str, x: tf.Tensor, *sizes: int) -> tf.Tensor:
        """Returns float32 [B, T, *sizes] in [0, 1) for [B, T, D]: functions of row and position."""
        key, rows = self.random_key(name), context.current().rows
        if rows is None:
            where = self.path or type(self).__name__
            raise RuntimeError(f"{where}: a router that draws needs the rows in the call context")
        return random.uniform(random.fold(key, rows), size_of(x, 1), *sizes)

    def _jitter(self, x: tf.Tensor) -> tf.Tensor:
        if not (self.p.jitter and context.current().training):
            return x
        noise = 1 + self.p.jitter * (2 * self.draw("jitter", x, self.p.dim) - 1)
        return x * tf.cast(noise, x.dtype)
