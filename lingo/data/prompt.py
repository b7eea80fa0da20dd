"""A text that a model is given, as its input would lay it out: `Input.prompt`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Prompt(NamedTuple):
    """What a model reads before it writes.

    Attributes:
        tokens: int32 [at least 1], those before the first new one, the start among them.
        source: int32 [N], what an encoder reads; None: there is none.
        is_prefix: whether all of `tokens` is a prefix, whose positions see each other.
        is_answered: whether what is written is a text of its own; else it goes on with the prompt.
    """

    tokens: np.ndarray
    source: np.ndarray | None = None
    is_prefix: bool = False
    is_answered: bool = False

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return len(self.tokens) + (0 if self.source is None else len(self.source))

    def num_positions(self, max_tokens: int) -> int:
        """Returns how many positions a model needs for so many new tokens; the last needs none."""
        return max(len(self.tokens) + max_tokens - 1, self.size - len(self.tokens))
