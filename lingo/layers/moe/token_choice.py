"""Routers where tokens choose experts, and experts take them in order until they are full.

Axes: B batch, T positions, D model width, G groups, S tokens per group, K choices per token,
E experts, C slots per expert and group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.moe.learned import LearnedRouter, Scores
from lingo.layers.moe.routing import Routing, Tokens
from lingo.ops import routing as ops

BalanceScale = Literal["switch", "gshard"]
"""The scale of the load-balance loss: `switch` is E * sum f_e P_e (Fedus et al. 2022, eq. 4; also
Lingvo's), 1 for an even load; `gshard` is sum f_e P_e / E (Lepikhin et al. 2020, algorithm 1),
1 / E^2 for an even load."""

Priority = Literal["position", "gate"]
"""Which tokens get slots first: earlier ones, or those whose first choice is most probable
(batch-prioritized routing: Riquelme et al. 2021, sec. 4.1). The second is for encoders, as later
tokens can then take the slots of earlier ones."""

Draw = Callable[[int], "tf.Tensor"]
"""Draws n uniform numbers in [0, 1) for each token: from n to float32 [G, S, n]."""


class TokenChoiceRouter(LearnedRouter, interface=True):
    """Lets tokens choose experts, by `choose` of the subclass, and adds a load-balance loss.

    The loss counts first choices, before any is dropped.
    """

    balance_loss: float = 0.01  # coefficient of the load-balance loss
    balance_scale: BalanceScale = "switch"  # whose load-balance loss
    priority: Priority = "position"  # which tokens get slots first

    @property
    def is_causal(self) -> bool:
        return super().is_causal and self.p.priority == "position"

    def check(self) -> None:
        super().check()
        ranges.check_not_negative(self.p, "balance_loss")
        if self.max_choices() > self.p.num_experts:
            raise ParamError(
                f"num_experts={self.p.num_experts} is less than the {self.max_choices()} that a"
                f" {type(self).__name__} sends a token to: it takes none twice"
            )

    def choose(self, scores: Scores, draw: Draw | None) -> ops.Choices:
        """Returns the choices of tokens, [G, S, K]; choices of padding need not be removed.

        Args:
            scores: scores of the tokens, [G, S, E].
            draw: draws random numbers; call it at most once. None outside training.
        """
        raise NotImplementedError(f"{type(self).__name__} has no choose")

    def __call__(self, x: tf.Tensor, *, tokens: Tokens, capacity: Any) -> Routing:
        def draw(num: int) -> tf.Tensor:
            return ops.group_tokens(self.draw("choices", x, num), tokens.group_size)

        scores = self.scores(x, tokens)
        choices = self.choose(scores, draw if context.current().training else None)
        counted = choices.uses_slot & tf.expand_dims(scores.valid, -1)
        choices = choices._replace(uses_slot=counted)
        self._hand_out_balance(choices.expert[:, :, 0], scores)
        urgency = None
        if self.p.priority == "gate":
            urgency = tf.reduce_max(scores.probabilities, axis=-1)
        return self.assign_slots(choices, valid=scores.valid, capacity=capacity, urgency=urgency)

    def _hand_out_balance(self, first: tf.Tensor, scores: Scores) -> None:
        values = ops.balance_loss(first, scores.probabilities, scores.valid)
        if self.p.balance_scale == "gshard":
            values /= self.p.num_experts**2
        self.hand_out_loss("balance_loss", values, scores, self.p.balance_loss)
