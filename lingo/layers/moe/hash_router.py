"""Routing without weights: by a hash of the token id.

Axes: B batch, T positions, D model width, G groups, S tokens per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.inputs import BatchRequirements
from lingo.layers.moe.router import Router
from lingo.layers.moe.routing import Routing, Tokens
from lingo.ops import random
from lingo.ops import routing as ops


class HashRouter(Router):
    """Routes a token to the expert that a hash of its id selects, gate 1 (Roller et al. 2021).

    Overflow and padding are not routed. Routers of equal seeds route a token to the same expert.
    """

    seed: int = 0  # of the hash

    def batch_requirements(self, shape: Sequence[int | None] = (None, None)) -> BatchRequirements:
        return BatchRequirements(token_ids=True)

    def __call__(self, x: tf.Tensor, *, tokens: Tokens, capacity: Any) -> Routing:
        """Routes tokens by their ids.

        Args:
            x: [B, T, D]; unused.
            tokens: `ids` must be given.
            capacity: C, as in `Router`.

        Returns:
            One choice per token.

        Raises:
            ParamError: if the model does not pass the ids of the tokens.
        """
        if tokens.ids is None:
            raise ParamError(
                f"{self.path or 'HashRouter'}: HashRouter needs the ids of the tokens, and the"
                " layers around pass no `token_ids`: take a router that goes by the vectors"
            )
        words = random.bits(random.fold(random.root_key(self.p.seed), tokens.ids), 1)
        expert = tf.math.floormod(words, tf.constant(self.p.num_experts, words.dtype))
        expert = ops.group_tokens(tf.cast(expert, tf.int32), tokens.group_size)
        valid = ops.group_tokens(tokens.valid, tokens.group_size)
        counted = tf.expand_dims(valid, -1)
        gate = tf.ones_like(expert, tf.float32)
        choices = ops.Choices(expert, gate, uses_slot=counted, kept=counted)
        return self.assign_slots(choices, valid=valid, capacity=capacity)
