"""The router of a mixture of experts: which experts see a token, and how much each counts.

Axes: B batch, T positions, D model width, G groups, S tokens of a group, K choices, E experts,
C slots that an expert has for a group.
"""

from __future__ import annotations

from typing import Any, ClassVar

from lingo.config.lazy import tf
from lingo.layers.initial import ONES
from lingo.layers.layer import Layer
from lingo.layers.moe.routing import Routing, Tokens
from lingo.ops import routing as ops


class Router(Layer, kind=True):
    """Decides for each token by itself and its group, never by other groups.

    Attributes:
        looks_ahead: whether later tokens decide where one goes even if there is room for all.

    State:
        load: [E], how many choices name each expert, room or not, over how many would in balance.
    """

    dim: int  # width of the input; the mixture offers it
    num_experts: int  # E; the mixture offers it

    looks_ahead: ClassVar[bool] = False

    @property
    def is_causal(self) -> bool:
        """Whether no rule of it goes by later tokens, so that what writes may have it.

        That first choices are served before all second ones does not count.
        """
        return not self.looks_ahead

    def setup(self) -> None:
        self.load = self.state("load", [self.p.num_experts], decay=0.9, init=ONES, shown=True)

    def __call__(self, x: tf.Tensor, *, tokens: Tokens, capacity: Any) -> Routing:
        """Routes tokens; hands out losses and metrics beside that.

        Args:
            x: [B, T, D], any float type.
            tokens: which of them count, and how they are grouped.
            capacity: C, tokens of a group that an expert takes at most, an int or an int32 scalar.

        Returns:
            The experts of each token, G * S = B * T.
        """
        raise NotImplementedError(f"{type(self).__name__} has no __call__")

    def max_choices(self) -> int:
        """Returns how many experts a token is sent to at most, capacity aside."""
        return 1

    def assign_slots(
        self,
        choices: ops.Choices,
        *,
        valid: tf.Tensor,
        capacity: Any,
        urgency: tf.Tensor | None = None,
    ) -> Routing:
        """Gives slots to choices as long as there are some, and hands out how that went.

        Of choices, those dropped are a part of those that would use a slot: one that is counted and
        not kept is not dropped.

        Args:
            choices: K a token; those of padding are not counted.
            valid: bool [G, S].
            capacity: C.
            urgency: float32 [G, S], which tokens come first; None: by position.
        """
        num_experts = self.p.num_experts
        position = ops.positions_in_expert(
            choices.expert, choices.uses_slot, num_experts=num_experts, urgency=urgency
        )
        used = choices.uses_slot & choices.kept
        has_slot = used & (position < capacity)
        self.side_metric(
            "moe/dropped_choices_fraction",
            {"sum": _count(used & ~has_slot), "weight": _count(used)},
        )
        demand = ops.demand(choices.expert, choices.uses_slot, num_experts)
        self.hand_out_load(demand, valid=valid, has_slot=has_slot)
        slot, gate = tf.where(has_slot, position, -1), tf.where(has_slot, choices.gate, 0.0)
        return Routing(choices.expert, slot, gate, capacity)

    def hand_out_load(self, demand: tf.Tensor, *, valid: tf.Tensor, has_slot: tf.Tensor) -> None:
        """Hands out how choices spread over experts, and the part of the tokens that got none.

        Args:
            demand: float32 [G, E], how many choices name an expert.
            valid: bool [G, S].
            has_slot: bool [G, S, K].
        """
        even = tf.reduce_sum(demand, axis=-1) / self.p.num_experts
        self.batch_statistic("load", tf.reduce_sum(demand, axis=0), tf.reduce_sum(even))
        largest = tf.math.divide_no_nan(tf.reduce_max(demand, axis=-1), even)
        self.side_metric(
            "moe/max_load", {"sum": tf.reduce_sum(largest), "weight": _count(even > 0)}
        )
        dropped = valid & ~tf.reduce_any(has_slot, axis=-1)
        self.side_metric("moe/dropped_fraction", {"sum": _count(dropped), "weight": _count(valid)})


def _count(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(x, tf.float32))
