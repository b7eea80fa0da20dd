"""GShard's routing: two experts per token, the second at random.

Axes: G groups, S tokens per group, K = 2 choices per token.
"""

from __future__ import annotations

from lingo.config.lazy import tf
from lingo.layers.moe.learned import Scores
from lingo.layers.moe.token_choice import BalanceScale, Draw, TokenChoiceRouter
from lingo.ops import routing as ops


class GShardRouter(TokenChoiceRouter):
    """Algorithm 1 of Lepikhin et al. 2020, its loops over tokens as cumulative sums.

    The two gates sum to 1. All first choices get slots before all second ones. A second choice of
    gate g_2 is used with probability min(1, 2 g_2), but counts toward its expert's capacity even
    if it is not used. In evaluation it is always used (the paper does not say). The load-balance
    loss of an even load is 1 / E^2: scale `balance_loss` with E^2.
    """

    balance_scale: BalanceScale = "gshard"  # whose load-balance loss

    def max_choices(self) -> int:
        return 2

    def choose(self, scores: Scores, draw: Draw | None) -> ops.Choices:
        expert = ops.most_probable(scores.probabilities, 2)
        gate = ops.normalize_gates(ops.gates_of(scores.probabilities, expert))
        every = tf.ones_like(expert, tf.bool)
        kept = every if draw is None else ops.always_first(draw(2) < 2 * gate)
        return ops.Choices(expert, gate, uses_slot=every, kept=kept)
