"""Switch routing: one expert per token.

Axes: G groups, S tokens per group.
"""

from __future__ import annotations

from lingo.config.lazy import tf
from lingo.layers.moe.learned import Scores
from lingo.layers.moe.token_choice import Draw, TokenChoiceRouter
from lingo.ops import routing as ops


class SwitchRouter(TokenChoiceRouter):
    """Routes each token to its most probable expert, with that probability as its gate.

    (Fedus et al. 2022, sec. 2.1.)
    """

    def choose(self, scores: Scores, draw: Draw | None) -> ops.Choices:
        del draw
        expert = ops.most_probable(scores.probabilities, 1)
        gate = ops.gates_of(scores.probabilities, expert)
        every = tf.ones_like(expert, tf.bool)
        return ops.Choices(expert, gate, uses_slot=every, kept=every)
