"""Prefix language modelling: the rest of a text is predicted from its beginning.

Axes: B examples (rows), S tokens per source row, T tokens per target row, L tokens of text per row.
"""

from __future__ import annotations

import numpy as np

from lingo.config.params import ParamError
from lingo.data.objectives.denoising import Denoising
from lingo.data.pairs.pair import Pair
from lingo.data.pairs.paired_input import Lengths
from lingo.data.prompt import Prompt
from lingo.ops import random


class PrefixText(Denoising):
    """Texts split at a random place (Raffel et al. 2020, sec. 3.2.3; Liu et al. 2018, sec. 4.2.4).

    Every split that leaves at least one token on each side is equally likely. With an encoder, the
    source gets an end token; the target gets none, because the text continues in the next row. S
    and T are then `length` each. A decoder alone has all of the text in one row of `length`.
    """

    length: int  # tokens of text a row

    def check(self) -> None:
        super().check()
        if self.p.length < 2:
            raise ParamError(f"length={self.p.length} has no place to split a text at")

    @property
    def text_length(self) -> int:
        return self.p.length

    @property
    def lengths(self) -> Lengths:
        return Lengths(self.p.length, self.p.length, self.p.length)

    def prompt(self, text: str) -> Prompt:
        prompt = super().prompt(text)._replace(is_answered=False)
        if self.p.form == "encoder_decoder":
            return prompt
        return prompt._replace(tokens=prompt.tokens[:-1])  # without an end token, as in `pair`

    def mask(self, num_tokens: int, key: random.Key) -> np.ndarray:
        prefix_size = 1 + int(float(random.uniform(key)) * (num_tokens - 1))
        return np.arange(num_tokens) >= prefix_size

    def pair(self, ids: np.ndarray, mask: np.ndarray) -> Pair:
        end = [self.tokenizer.end_id] if self.p.form == "encoder_decoder" else []
        return Pair(np.append(ids[~mask], end).astype(np.int32), ids[mask])
