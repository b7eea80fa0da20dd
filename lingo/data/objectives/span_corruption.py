"""Span corruption, T5's objective: spans of a text are predicted from the rest of it.

Axes: B examples (rows), S tokens per source row, T tokens per target row, L tokens of text per row.
"""

from __future__ import annotations

import functools

import numpy as np

from lingo.config.params import ParamError
from lingo.data.objectives.denoising import Denoising
from lingo.data.objectives.sentinels import SentinelTokenizer
from lingo.data.objectives.spans import Counts, Noise, corrupt, counts, noise_mask, text_length
from lingo.data.pairs.pair import Pair
from lingo.data.pairs.paired_input import Lengths
from lingo.data.tokenizer import Tokenizer
from lingo.ops import random


class SpanCorruption(Denoising):
    """Texts with a sentinel for each removed span; the target has the spans after their sentinels.

    From "Thank you <0> me to <1> party <2> week", "<0> for inviting <1> your <2> last" is predicted
    (Raffel et al. 2020, sec. 3.1.4). Rows are full: L and T follow from `source_length`; 512 gives
    568 tokens of text and 114 of target. (The paper's figure ends the target with a sentinel; T5's
    code does not, nor does this.)
    """

    source_length: int = 512  # tokens a row of sources: what is kept, sentinels, an end
    noise_density: float = 0.15  # share of the tokens of a text that is taken out
    mean_span_length: float = 3.0  # tokens a span
    tokenizer: Tokenizer = SentinelTokenizer  # how text becomes integers, and which are sentinels

    def check(self) -> None:
        super().check()
        p = self.p
        if p.source_length < 3:
            raise ParamError(f"source_length={p.source_length} is less than 3, the shortest")
        if not 0 < p.noise_density < 1:
            raise ParamError(f"noise_density={p.noise_density} is not between 0 and 1")
        if p.mean_span_length < 1:
            raise ParamError(f"mean_span_length={p.mean_span_length} is less than a token")

    def setup(self) -> None:
        super().setup()
        if not isinstance(self.tokenizer, SentinelTokenizer):
            raise ParamError(
                f"tokenizer is {type(self.tokenizer).__name__}, which has no ids for what is taken"
                f" out: SentinelTokenizer(tokenizer={type(self.tokenizer).__name__}(...))"
            )
        num_sentinels, num_spans = len(self.tokenizer.sentinels), self._counts.spans
        if num_sentinels < num_spans:
            raise ParamError(
                f"source_length={self.p.source_length} has {num_spans} spans a row, but there are"
                f" {num_sentinels} sentinels: set tokenizer.num_sentinels={num_spans}"
            )

    @functools.cached_property
    def text_length(self) -> int:
        return text_length(self.p.source_length, self._noise)

    @property
    def lengths(self) -> Lengths:
        source, target = self.p.source_length, self._counts.target
        return Lengths(source, target, source + target)

    def source_ids(self, text: str) -> np.ndarray:
        return self.tokenizer.encode_marked(text)

    def mask(self, num_tokens: int, key: random.Key) -> np.ndarray:
        return noise_mask(num_tokens, self._noise, key)

    def pair(self, ids: np.ndarray, mask: np.ndarray) -> Pair:
        tokenizer = self.tokenizer
        return corrupt(ids, mask, tokenizer.sentinels, end_id=tokenizer.end_id)

    @property
    def _noise(self) -> Noise:
        return Noise(self.p.noise_density, self.p.mean_span_length)

    @property
    def _counts(self) -> Counts:
        return counts(self.text_length, self._noise)
