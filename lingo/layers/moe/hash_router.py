"""Routing without weights: by a hash of the token id.

Axes: B batch, T positions, D model width, G groups, S tokens per group.
"""

from __future__ import annotations

from typing import Any, ClassVar

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.moe.router import Router, Routing, Tokens
from lingo.ops import random, routing
from lingo.ops.routing import Choices


class HashRouter(Router):
    """Routes a token to the expert that a hash of its id selects, gate 1 (Roller et al. 2021).

    Overflow and padding are not routed. Routers of equal seeds route a token to the same expert.
    """

    seed: int = 0  # of the hash

    reads_tokens: ClassVar[bool] = True

    def __call__(self, x: tf.Tensor, *, tokens: Tokens, capacity: Any) -> Routing:
        if tokens.ids is None:
            raise ParamError(
                f"{self.path or 'HashRouter'}: HashRouter needs the ids of the tokens, which the"
                " layers around it do not pass: take a router that goes by the vectors"
            )
        words = random.bits(random.fold(random.root_key(self.p.seed), tokens.ids), 1)
        expert = tf.math.floormod(words, tf.constant(self.p.num_experts, words.dtype))
        expert = routing.group_tokens(tf.cast(expert, tf.int32), tokens.group_size)
        valid = routing.group_tokens(tokens.valid, tokens.group_size)
        counted = tf.expand_dims(valid, -1)
        gate = tf.ones_like(expert, tf.float32)
        choices = Choices(expert, gate, uses_slot=counted, fills_slot=counted)
        return self.assign_slots(choices, valid=valid, capacity=capacity)
