"""ST-MoE's routing: n experts per token, all but the first at random.

Axes: G groups, S tokens per group, K choices per token.
"""

from __future__ import annotations

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.moe.learned import Scores
from lingo.layers.moe.token_choice import Draw, TokenChoiceRouter
from lingo.ops import routing as ops


class TopNRouter(TokenChoiceRouter):
    """Routes to the n most probable experts, with gates that sum to 1 (Zoph et al. 2022, appendix).

    The first expert is always used, each other one with probability min(1, gate / threshold); an
    unused choice takes no slot. In evaluation all n are used (the paper gives no rule). For n = 1
    the gate is the probability itself, as in Switch.
    """

    num_choices: int = 2  # n, experts that a token is sent to at most
    threshold: float = 0.2  # from which gate on a choice is always used

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_choices", "threshold")

    def max_choices(self) -> int:
        return self.p.num_choices

    def choose(self, scores: Scores, draw: Draw | None) -> ops.Choices:
        expert = ops.most_probable(scores.probabilities, self.p.num_choices)
        gate = ops.gates_of(scores.probabilities, expert)
        if self.p.num_choices > 1:  # a single gate would always be 1, without a gradient
            gate = ops.normalize_gates(gate)
        used = tf.ones_like(expert, tf.bool)
        if draw is not None:
            used = ops.always_first(draw(self.p.num_choices) < gate / self.p.threshold)
        return ops.Choices(expert, gate, uses_slot=used, kept=used)
