"""Prefix language modelling: the rest of a text from its beginning.

B examples (rows), S tokens a row of sources, T tokens a row of targets, L tokens of text a row.
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

    Every place is equally likely, from one token before it to one behind it. With an encoder, its
    part has an end; nothing else is added, for the text goes on behind a row. S and T are then
    `length` each. A decoder alone has all of the text in one row of `length`.
    """

    length: int  # tokens of text a row

    def check(self) -> None:
        super().check()
        if self.p.length < 2:
            raise ParamError(f"length={self.p.length} has no place to split a text at")

    @property
    def text_length(self) -> int:
        """L."""
        return self.p.length

    @property
    def lengths(self) -> Lengths:
        return Lengths(self.p.length, self.p.length, self.p.length)

    def prompt(self, text: str) -> Prompt:
        prompt = super().prompt(text)._replace(is_answered=False)
        if self.p.form == "encoder_decoder":
            return prompt
        return prompt._replace(tokens=prompt.tokens[:-1])  # without an end, as in `pair`

    def mask(self, num_tokens: int, key: random.Key) -> np.ndarray:
        given = 1 + int(float(random.uniform(key)) * (num_tokens - 1))
        return np.arange(num_tokens) >= given

    def pair(self, ids: np.ndarray, mask: np.ndarray) -> Pair:
        end = [self.tokenizer.end_id] if self.p.form == "encoder_decoder" else []
        return Pair(np.append(ids[~mask], end).astype(np.int32), ids[mask])
