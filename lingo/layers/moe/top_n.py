"""ST-MoE's routing: any number of experts a token, all but the first at random.

Axes: G groups, S tokens of a group, K choices.
"""

from __future__ import annotations

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.moe.learned import Scores
from lingo.layers.moe.token_choice import Draw, TokenChoiceRouter
from lingo.ops import routing as ops


class TopNRouter(TokenChoiceRouter):
    """The n most probable experts, their gates made to add up to 1 (Zoph et al. 2022, appendix).

    The first is always used, another with probability min(1, gate / threshold); one that is left
    out takes no slot. In evaluation nothing is drawn and all n are used (the paper gives no rule).
    A single choice keeps its probability as its gate, as in Switch.
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
        if self.p.num_choices > 1:  # of one it would be 1, whatever the router's weights are
            gate = ops.normalize_gates(gate)
        used = tf.ones_like(expert, tf.bool)
        if draw is not None:
            used = ops.always_first(draw(self.p.num_choices) < gate / self.p.threshold)
        return ops.Choices(expert, gate, uses_slot=used, kept=used)
