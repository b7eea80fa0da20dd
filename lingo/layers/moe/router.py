"""The router of a mixture of experts: chooses the experts and gates of each token.

Axes: B batch, T positions, D model width, G groups, S tokens per group, K choices per token,
E experts, C slots per expert and group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.initial import ONES
from lingo.layers.inputs import BatchRequirements
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall
from lingo.ops import random, routing
from lingo.ops.routing import Choices


class Routing(NamedTuple):
    """The experts that each token is routed to: K choices per token, of different experts.

    An expert has C slots per group, and each slot takes at most one choice. A choice that is not
    routed has the slot -1 and the gate 0.
    """

    expert: tf.Tensor  # int32 [G, S, K], the expert of each choice
    slot: tf.Tensor  # int32 [G, S, K], the choice's slot among the C slots of its expert, or -1
    gate: tf.Tensor  # float32 [G, S, K], the factor of the expert's output
    capacity: Any  # C, an int, or an int32 scalar if it is unknown while tracing


class Tokens(NamedTuple):
    """A router's inputs besides the vectors of tokens.

    Groups are runs of S = `group_size` tokens of the batch, example after example. S divides T or
    is a multiple of T.
    """

    valid: tf.Tensor  # bool [B, T], false for padding, which is neither routed nor counted
    ids: tf.Tensor | None  # int32 [B, T], token ids; None if the model does not pass them
    group_size: Any  # S, an int, or an int32 scalar if it is unknown while tracing


class Router(Layer, interface=True):
    """Routes each token to experts, which depend on the token and its group, not on other groups.

    Attributes:
        looks_ahead: whether a token's experts depend on later tokens even if experts have room for
            all tokens.

    State:
        load: [E], the number of choices per expert, dropped choices too, relative to an even load.
    """

    dim: int  # width of the input; inherited from the mixture
    num_experts: int  # E; inherited from the mixture

    looks_ahead: ClassVar[bool] = False

    @property
    def is_causal(self) -> bool:
        """Whether routing does not depend on later tokens, so that decoders may use it.

        This ignores one dependence on later tokens: in some routers, the first choices of all
        tokens get slots before any second choice.
        """
        return not self.looks_ahead

    def setup(self) -> None:
        self.load = self.state("load", [self.p.num_experts], decay=0.9, init=ONES, shown=True)

    def __call__(self, x: tf.Tensor, *, tokens: Tokens, capacity: Any) -> Routing:
        """Routes tokens x [B, T, D], any float type; adds losses and metrics as side outputs.

        The tensors of the result are [G, S, K], where G * S = B * T. `capacity` is C, the most
        tokens of a group that an expert takes, an int or an int32 scalar.
        """
        raise NotImplementedError(f"{type(self).__name__} has no __call__")

    def max_choices(self) -> int:
        """Returns the most experts that a token is routed to if no expert is full."""
        return 1

    def assign_slots(
        self, choices: Choices, *, valid: tf.Tensor, capacity: Any, urgency: tf.Tensor | None = None
    ) -> Routing:
        """Assigns slots to choices while experts have room; adds the load and its metrics.

        A choice that should fill a slot, but whose expert is full, counts as dropped.

        Args:
            choices: K choices per token, [G, S, K]; `uses_slot` is false at padding.
            valid: bool [G, S], false for padding.
            capacity: C, an int or an int32 scalar.
            urgency: float32 [G, S]; tokens with larger values get slots first. None: earlier tokens
                get slots first.
        """
        num_experts = self.p.num_experts
        position = routing.positions_in_expert(
            choices.expert, choices.uses_slot, num_experts=num_experts, urgency=urgency
        )
        used = choices.uses_slot & choices.fills_slot
        has_slot = used & (position < capacity)
        self.side_metric(
            "moe/dropped_choices_fraction",
            {"sum": _count(used & ~has_slot), "weight": _count(used)},
        )
        demand = routing.demand(choices.expert, choices.uses_slot, num_experts)
        self.add_load(demand, valid=valid, has_slot=has_slot)
        slot, gate = tf.where(has_slot, position, -1), tf.where(has_slot, choices.gate, 0.0)
        return Routing(choices.expert, slot, gate, capacity)

    def add_load(self, demand: tf.Tensor, *, valid: tf.Tensor, has_slot: tf.Tensor) -> None:
        """Adds each expert's load to the state, and the metrics of load and of dropped tokens.

        `moe/max_load` is the load of the busiest expert relative to an even load, averaged over
        groups and layers. `moe/dropped_fraction` is the fraction of tokens without a slot.

        Args:
            demand: float32 [G, E], the number of choices of each expert.
            valid: bool [G, S], false for padding.
            has_slot: bool [G, S, K], whether a choice got a slot.
        """
        even = tf.reduce_sum(demand, axis=-1) / self.p.num_experts
        self.batch_statistic("load", tf.reduce_sum(demand, axis=0), tf.reduce_sum(even))
        largest = tf.math.divide_no_nan(tf.reduce_max(demand, axis=-1), even)
        self.side_metric(
            "moe/max_load", {"sum": tf.reduce_sum(largest), "weight": _count(even > 0)}
        )
        dropped = valid & ~tf.reduce_any(has_slot, axis=-1)
        self.side_metric("moe/dropped_fraction", {"sum": _count(dropped), "weight": _count(valid)})

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []


class HashRouter(Router):
    """Routes a token to the expert that a hash of its id selects (Roller et al. 2021).

    The gate is 1. Padding, and tokens whose expert is full, are not routed. Routers with the same
    seed send a token to the same expert.
    """

    seed: int = 0  # seed of the hash

    def batch_requirements(self, shape: Sequence[int | None] = (None, None)) -> BatchRequirements:
        return BatchRequirements(token_ids=True)

    def __call__(self, x: tf.Tensor, *, tokens: Tokens, capacity: Any) -> Routing:
        if tokens.ids is None:
            raise ParamError(
                f"{self.path or 'HashRouter'}: HashRouter needs the ids of the tokens, which the"
                " layers around it do not pass: take a router that reads vectors"
            )
        words = random.bits(random.fold(random.root_key(self.p.seed), tokens.ids), 1)
        expert = tf.math.floormod(words, tf.constant(self.p.num_experts, words.dtype))
        expert = routing.group_tokens(tf.cast(expert, tf.int32), tokens.group_size)
        valid = routing.group_tokens(tokens.valid, tokens.group_size)
        counted = tf.expand_dims(valid, -1)
        gate = tf.ones_like(expert, tf.float32)
        choices = Choices(expert, gate, uses_slot=counted, fills_slot=counted)
        return self.assign_slots(choices, valid=valid, capacity=capacity)


def _count(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(x, tf.float32))
