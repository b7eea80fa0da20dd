"""Routing where experts choose tokens.

Axes: B batch, T positions, D model width, G groups, S tokens per group, E experts, C slots per
expert and group.
"""

from __future__ import annotations

from typing import Any, ClassVar

from lingo.config.lazy import tf
from lingo.layers.moe.learned import LearnedRouter
from lingo.layers.moe.router import Routing, Tokens
from lingo.ops import routing


class ExpertChoiceRouter(LearnedRouter):
    """Each expert takes the C tokens of a group that give it the largest probabilities.

    (Zhou et al. 2022, sec. 3.2.) Loads are equal by construction, so there is no load-balance loss.
    Any number of experts may take a token; each expert counts as one of its choices, so K = E. The
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
