"""Lingvo's form of GShard's routing.

Axes: G groups, S tokens per group, E experts.
"""

from __future__ import annotations

from typing import Literal

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.moe.learned import Scores
from lingo.layers.moe.token_choice import Draw, TokenChoiceRouter
from lingo.ops import routing as ops

SecondExpert = Literal["all", "sampling", "random"]
"""The second expert: `all` takes the second most probable; `sampling` draws it from the softmax
without the first; `random` takes the second most probable with probability g_2 / threshold."""


class LingvoRouter(TokenChoiceRouter):
    """Routes as Lingvo's `Top2GatingOnLogits` does in its default form.

    Unlike algorithm 1 of Lepikhin et al. 2020, it has policies, an unused second choice takes no
    slot, and the load-balance loss is E^2 times the paper's. In evaluation nothing is random: every
    policy is `all`. Unlike Lingvo, means leave out padding, where Lingvo divides by all positions,
    and the capacity is the mixture's, where Lingvo rounds up to a multiple of 4.
    """

    policy: SecondExpert = "all"  # which second expert
    threshold: float = 0.2  # `random`: from which gate on the second choice is always used

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "threshold")

    def max_choices(self) -> int:
        return 2

    def choose(self, scores: Scores, draw: Draw | None) -> ops.Choices:
        expert = ops.most_probable(scores.probabilities, 2)
        if draw is not None and self.p.policy == "sampling":
            first = expert[:, :, :1]
            second = _sample_second(scores.logits, first, draw(self.p.num_experts))
            expert = tf.concat([first, second], axis=-1)
        gate = ops.normalize_gates(ops.gates_of(scores.probabilities, expert), epsilon=1e-9)
        used = tf.ones_like(expert, tf.bool)
        if draw is not None and self.p.policy == "random":
            used = ops.always_first(draw(2) < gate / self.p.threshold)
        return ops.Choices(expert, gate, uses_slot=used, kept=used)


def _sample_second(logits: tf.Tensor, first: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Samples an expert other than the first from the softmax, by the Gumbel-max trick.

    Args:
        logits: float32 [G, S, E].
        first: int32 [G, S, 1], the first expert.
        uniform: float32 [G, S, E], in [0, 1).

    Returns:
        int32 [G, S, 1].
    """
    noise = -tf.math.log(-tf.math.log(tf.maximum(uniform, 2.0**-25)))  # never log(0)
    others = tf.not_equal(tf.range(logits.shape[-1]), first)
    noisy = tf.where(others, logits + noise, -float("inf"))
    return tf.expand_dims(tf.argmax(noisy, axis=-1, output_type=tf.int32), -1)
