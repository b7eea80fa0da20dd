"""Where tokens go: what a router decides, and what dispatching reads.

Axes: B batch, T positions, G groups, S tokens of a group, K choices of a token, E experts,
C slots that an expert has for a group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.config.lazy import tf


class Routing(NamedTuple):
    """The experts that each token of each group is sent to.

    Attributes:
        expert: int32 [G, S, K], which expert a choice names; an expert never twice for a token.
        slot: int32 [G, S, K], the slot that the token has among the C of that expert for its
            group, each taken once; -1 where it is not sent.
        gate: float32 [G, S, K], what the expert's output is multiplied by; 0 where it is not sent.
        capacity: C, an int, or an int32 scalar where a trace does not know it.
    """

    expert: tf.Tensor
    slot: tf.Tensor
    gate: tf.Tensor
    capacity: Any


class Tokens(NamedTuple):
    """What a router knows of the tokens, besides their vectors.

    Attributes:
        valid: bool [B, T], false for padding, which is sent nowhere and counts nowhere.
        ids: int32 [B, T], their numbers in the vocabulary; None if the model does not tell.
        group_size: S, a divisor or a multiple of T: the groups are runs of tokens, row after row.
            An int, or an int32 scalar where a trace does not know it.
    """

    valid: tf.Tensor
    ids: tf.Tensor | None
    group_size: Any
