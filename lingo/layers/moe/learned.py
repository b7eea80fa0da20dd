"""Routers that learn: a softmax over experts of a linear map, computed in float32.

Axes: B batch, T positions, D model width, G groups, S tokens per group, E experts, C slots per
expert and group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers import context
from lingo.layers.context import annotate
from lingo.layers.initial import FanIn, Initializer
from lingo.layers.moe.router import Router, Routing, Tokens
from lingo.layers.product import Product
from lingo.ops import random, routing
from lingo.ops.shape import size_of


class Scores(NamedTuple):
    """The logits and probabilities of all experts for each token."""

    logits: tf.Tensor  # float32 [G, S, E]
    probabilities: tf.Tensor  # float32 [G, S, E], the softmax of the logits
    valid: tf.Tensor  # bool [G, S], false for padding
    rows: tf.Tensor  # float32 scalar, examples per group; below 1 if an example has several groups


class LearnedRouter(Router, interface=True):
    """Gives experts the probabilities softmax(x w), in float32 for every dtype of the mixture.

    Float32 in the router alone is selective precision (Fedus et al. 2022, sec. 2.4). The field
    `dtype` of the router sets another type. The product x w is as precise as the device's float32
    products.

    Weights:
        w: [D, E].
    """

    # e: in training, uniform random numbers in [1 - e, 1 + e] multiply the input; Switch uses 0.01
    jitter: float = 0.0
    z_loss: float = 0.0  # coefficient of the mean square of log sum exp(logits); ST-MoE uses 0.001
    init: Initializer = FanIn.params(scale=0.1)  # of w; small, as in Fedus et al. 2022, sec. 2.4

    products = (Product("w", exact=True),)

    def check(self) -> None:
        ranges.check_fraction(self.p, "jitter")
        ranges.check_not_negative(self.p, "z_loss")

    def setup(self) -> None:
        super().setup()
        shape = [self.p.dim, self.p.num_experts]
        self.w = self.weight("w", shape, axes=("embed", None), init=self.p.init.build())

    def scores(self, x: tf.Tensor, tokens: Tokens) -> Scores:
        """Returns the experts' scores for tokens x [B, T, D].

        Adds the z-loss, and the metric `moe/entropy` of the experts' probabilities.
        """
        x = self._jitter(tf.cast(x, self.p.dtype))
        logits = tf.tensordot(*self.operands("w", input=x), 1)
        logits = routing.group_tokens(annotate(logits, "batch", "length", None), tokens.group_size)
        probabilities = tf.cast(tf.nn.softmax(logits), tf.float32)
        valid = routing.group_tokens(tokens.valid, tokens.group_size)
        rows = tf.cast(tokens.group_size, tf.float32) / tf.cast(size_of(x, 1), tf.float32)
        scores = Scores(tf.cast(logits, tf.float32), probabilities, valid, rows)
        self.add_loss("z_loss", routing.z_loss(scores.logits, valid), scores, self.p.z_loss)
        count = tf.cast(valid, tf.float32)
        total = tf.reduce_sum(routing.entropy(scores.logits) * count)
        self.side_metric("moe/entropy", {"sum": total, "weight": tf.reduce_sum(count)})
        return scores

    def add_loss(self, name: str, values: tf.Tensor, scores: Scores, coefficient: float) -> None:
        """Adds an auxiliary loss from a value per group, and a metric of the values' mean.

        `values` are float32 [G], 0 for a group of padding. The loss is coefficient * sum of the
        values * examples per group; divided by the batch size, this is the coefficient times the
        mean over groups. With a coefficient of 0 only the metric is added. The metric, the mean
        over groups with tokens, is named `moe/<name>`. The loss is named `moe_<name>` without a
        final `_loss`.
        """
        total = tf.reduce_sum(values)
        if coefficient:
            self.side_loss(f"moe_{name.removesuffix('_loss')}", coefficient * scores.rows * total)
        groups = tf.reduce_sum(tf.cast(tf.reduce_any(scores.valid, axis=-1), tf.float32))
        self.side_metric(f"moe/{name}", {"sum": total, "weight": groups})

    def flops(self, shape: Sequence[int]) -> int:
        return 2 * math.prod(shape) * self.p.num_experts

    def draw(self, name: str, x: tf.Tensor, *sizes: int) -> tf.Tensor:
        """Draws numbers in [0, 1), float32 [B, T, *sizes], for each position of x [B, T, D].

        The numbers depend on the example's id, the position and `name`, which must be unique in
        this layer.
        """
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


class ExpertChoiceRouter(LearnedRouter):
    """Each expert takes the C tokens of a group that give it the largest probabilities.

    (Zhou et al. 2022, sec. 3.2.) Loads are equal by construction, so there is no load-balance loss.
    Any number of experts may take a token, so a token has K = E choices, one for each expert. The
    result for a token depends on later tokens of its group, so tasks refuse this router in
    decoders.
    """

    looks_ahead: ClassVar[bool] = True

    def max_choices(self) -> int:
        return self.p.num_experts

    def __call__(self, x: tf.Tensor, *, tokens: Tokens, capacity: Any) -> Routing:
        scores = self.scores(x, tokens)
        slot = routing.best_tokens(scores.probabilities, scores.valid, capacity=capacity)
        has_slot = slot >= 0
        demand = tf.reduce_sum(tf.cast(has_slot, tf.float32), axis=1)
        self.add_load(demand, valid=scores.valid, has_slot=has_slot)
        expert = tf.zeros_like(slot) + tf.range(self.p.num_experts)
        return Routing(expert, slot, tf.where(has_slot, scores.probabilities, 0.0), capacity)
