"""The input and the result of a router.

Axes: B batch, T positions, G groups, S tokens per group, K choices per token, E experts,
C slots per expert and group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.config.lazy import tf


class Routing(NamedTuple):
    """The experts that each token of each group is routed to.

    Attributes:
        expert: int32 [G, S, K], the expert of each choice; the choices of a token differ.
        slot: int32 [G, S, K], the slot of each choice among the C of its expert and group, each
            used once; -1 for a choice that is not routed.
        gate: float32 [G, S, K], the factor of the expert's output; 0 for a choice without a slot.
        capacity: C, an int, or an int32 scalar if it is unknown while tracing.
    """

    expert: tf.Tensor
    slot: tf.Tensor
    gate: tf.Tensor
    capacity: Any


class Tokens(NamedTuple):
    """What a router knows about tokens besides their vectors.

    Attributes:
        valid: bool [B, T], false for padding, which is not routed and not counted.
        ids: int32 [B, T], token ids; None if the model does not pass them.
        group_size: S, a divisor or a multiple of T: groups are runs of tokens, example after
            example. An int, or an int32 scalar if it is unknown while tracing.
    """

    valid: tf.Tensor
    ids: tf.Tensor | None
    group_size: Any
