"""The mask under which several ratings of one response follow the same tokens.

Axes: B batch, T query positions, S key positions.
"""

from __future__ import annotations

from typing import Any

from lingo.config.lazy import tf
from lingo.layers.sequence.mask import Causal


class RatingMask(Causal):
    """Causal, but positions outside the input `prefix` are seen only by themselves.

    These positions are the attributes after a response, `SENSIBLE` and so on, in rows of
    `DialogInput` with `shares_prefix`. They have the same position id, so each gets the same rating
    as in a row of its own. In decoding, or without `prefix`, this is `Causal`.
    """

    has_consecutive_ids = False

    def sees(self, query: tf.Tensor, key: tf.Tensor, prefix: Any = None) -> Any:
        past = super().sees(query, key)
        if prefix is None:
            return past
        return past & (prefix[:, None, :] | (key[:, None, :] == query[:, :, None]))
