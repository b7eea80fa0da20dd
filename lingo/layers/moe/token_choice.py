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
from lingo.layers.moe.router import Routing, Tokens
from lingo.ops import routing
from lingo.ops.routing import Choices

BalanceScale = Literal["switch", "gshard"]
"""The scale of the load-balance loss. f_e is expert e's share of the tokens' first choices, and P_e
its mean probability. `switch` is E * sum f_e P_e, which is 1 for an even load (Fedus et al. 2022,
eq. 4; also Lingvo). `gshard` is sum f_e P_e / E, which is 1 / E^2 for an even load (Lepikhin et al.
2020, algorithm 1)."""

Priority = Literal["position", "gate"]
"""Which tokens get slots first. `position`: earlier tokens. `gate`: tokens whose first choice has a
larger probability (batch-prioritized routing: Riquelme et al. 2021, sec. 4.1). `gate` is for
encoders, as later tokens can then take the slots of earlier tokens."""

SecondExpert = Literal["all", "sampling", "random"]
"""How a second expert is chosen. `all` takes the second most probable expert. `sampling` draws an
expert from the softmax without the first expert. `random` takes the second most probable expert,
but only with probability g_2 / threshold, where g_2 is its gate."""

Draw = Callable[[int], "tf.Tensor"]
"""Draws n uniform numbers in [0, 1) for each token: maps n to float32 [G, S, n]."""


class TokenChoiceRouter(LearnedRouter, interface=True):
    """Lets tokens choose experts, by the subclass's `choose`, and adds a load-balance loss.

    The loss counts the first choices of all tokens, dropped ones too.
    """

    balance_loss: float = 0.01  # coefficient of the load-balance loss
    balance_scale: BalanceScale = "switch"  # which paper's load-balance loss
    priority: Priority = "position"  # which tokens get slots first

    @property
    def is_causal(self) -> bool:
        return super().is_causal and self.p.priority == "position"

    def check(self) -> None:
        super().check()
        ranges.check_not_negative(self.p, "balance_loss")
        if self.max_choices() > self.p.num_experts:
            raise ParamError(
                f"num_experts={self.p.num_experts} is less than the {self.max_choices()} different"
                f" experts that a {type(self).__name__} sends a token to"
            )

    def choose(self, scores: Scores, draw: Draw | None) -> Choices:
        """Returns the choices of each token, [G, S, K], from scores [G, S, E].

        Padding may have choices, too. `draw` draws random numbers and may be called once; it is
        None outside training.
        """
        raise NotImplementedError(f"{type(self).__name__} has no choose")

    def __call__(self, x: tf.Tensor, *, tokens: Tokens, capacity: Any) -> Routing:
        def draw(num: int) -> tf.Tensor:
            return routing.group_tokens(self.draw("choices", x, num), tokens.group_size)

        scores = self.scores(x, tokens)
        choices = self.choose(scores, draw if context.current().training else None)
        counted = choices.uses_slot & tf.expand_dims(scores.valid, -1)
        choices = choices._replace(uses_slot=counted)
        self._add_balance_loss(choices.expert[:, :, 0], scores)
        urgency = None
        if self.p.priority == "gate":
            urgency = tf.reduce_max(scores.probabilities, axis=-1)
        return self.assign_slots(choices, valid=scores.valid, capacity=capacity, urgency=urgency)

    def _add_balance_loss(self, first: tf.Tensor, scores: Scores) -> None:
        values = routing.balance_loss(first, scores.probabilities, scores.valid)
        if self.p.balance_scale == "gshard":
            values /= self.p.num_experts**2
        self.add_loss("balance_loss", values, scores, self.p.balance_loss)


class SwitchRouter(TokenChoiceRouter):
    """Routes each token to its most probable expert; this expert's probability is the gate.

    (Fedus et al. 2022, sec. 2.1.)
    """

    def choose(self, scores: Scores, draw: Draw | None) -> Choices:
        expert = routing.most_probable(scores.probabilities, 1)
        every = tf.ones_like(expert, tf.bool)
        gate = routing.gates_of(scores.probabilities, expert)
        return Choices(expert, gate, uses_slot=every, fills_slot=every)


class GShardRouter(TokenChoiceRouter):
    """Algorithm 1 of Lepikhin et al. 2020; cumulative sums replace its loops over tokens.

    The two gates of a token sum to 1. The first choices of all tokens get slots before any second
    choice. A second choice with gate g_2 is used with probability min(1, 2 g_2), but counts toward
    its expert's capacity even if it is not used. In evaluation, second choices are always used (the
    paper does not say). The load-balance loss of an even load is 1 / E^2, so scale `balance_loss`
    with E^2.
    """

    balance_scale: BalanceScale = "gshard"  # which paper's load-balance loss

    def max_choices(self) -> int:
        return 2

    def choose(self, scores: Scores, draw: Draw | None) -> Choices:
        expert = routing.most_probable(scores.probabilities, 2)
        gate = routing.normalize_gates(routing.gates_of(scores.probabilities, expert))
        every = tf.ones_like(expert, tf.bool)
        used = every if draw is None else routing.always_first(draw(2) < 2 * gate)
        return Choices(expert, gate, uses_slot=every, fills_slot=used)


class TopNRouter(TokenChoiceRouter):
    """Routes to the n most probable experts, with gates that sum to 1 (Zoph et al. 2022, appendix).

    The first expert is always used. Each other expert is used with probability
    min(1, gate / threshold); an unused choice takes no slot. In evaluation all n experts are used
    (the paper gives no rule). For n = 1 the gate is the probability itself, as in Switch.
    """

    num_choices: int = 2  # n, the most experts that a token is sent to
    threshold: float = 0.2  # a choice with at least this gate is always used

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_choices", "threshold")

    def max_choices(self) -> int:
        return self.p.num_choices

    def choose(self, scores: Scores, draw: Draw | None) -> Choices:
        expert = routing.most_probable(scores.probabilities, self.p.num_choices)
        gate = routing.gates_of(scores.probabilities, expert)
        if self.p.num_choices > 1:  # a single gate would always be 1, without a gradient
            gate = routing.normalize_gates(gate)
        used = tf.ones_like(expert, tf.bool)
        if draw is not None:
            used = routing.always_first(draw(self.p.num_choices) < gate / self.p.threshold)
        return Choices(expert, gate, uses_slot=used, fills_slot=used)


class LingvoRouter(TokenChoiceRouter):
    """Routes as Lingvo's `Top2GatingOnLogits` does in its default form.

    It differs from algorithm 1 of Lepikhin et al. 2020: a policy chooses the second expert, an
    unused second choice takes no slot, and the load-balance loss is E^2 times the paper's. In
    evaluation nothing is random: every policy acts as `all`.

    It differs from Lingvo in two ways. Means leave out padding, where Lingvo divides by all
    positions. The capacity is the one that `MoE` computes, where Lingvo rounds up to a multiple
    of 4.
    """

    policy: SecondExpert = "all"  # how the second expert is chosen
    # with the policy `random`, a second choice with at least this gate is always used
    threshold: float = 0.2

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "threshold")

    def max_choices(self) -> int:
        return 2

    def choose(self, scores: Scores, draw: Draw | None) -> Choices:
        expert = routing.most_probable(scores.probabilities, 2)
        if draw is not None and self.p.policy == "sampling":
            first = expert[:, :, :1]
            second = _sample_second(scores.logits, first, draw(self.p.num_experts))
            expert = tf.concat([first, second], axis=-1)
        gate = routing.gates_of(scores.probabilities, expert)
        gate = routing.normalize_gates(gate, epsilon=1e-9)
        used = tf.ones_like(expert, tf.bool)
        if draw is not None and self.p.policy == "random":
            used = routing.always_first(draw(2) < gate / self.p.threshold)
        return Choices(expert, gate, uses_slot=used, fills_slot=used)


def _sample_second(logits: tf.Tensor, first: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Samples an expert other than the first, int32 [G, S, 1], by the Gumbel-max trick."""
    noise = -tf.math.log(-tf.math.log(tf.maximum(uniform, 2.0**-25)))  # never log(0)
    is_other = tf.not_equal(tf.range(logits.shape[-1]), first)
    noisy = tf.where(is_other, logits + noise, -float("inf"))
    return tf.expand_dims(tf.argmax(noisy, axis=-1, output_type=tf.int32), -1)
