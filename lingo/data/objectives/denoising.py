"""Objectives on rows of running text: a part of each is taken out, and predicted from the rest.

B examples (rows), S tokens a row of sources, T tokens a row of targets, L tokens of text a row.
"""

from __future__ import annotations

import numpy as np

from lingo.data.packing import Packing, Stream
from lingo.data.pairs.pair import Pair
from lingo.data.pairs.paired_input import PairedInput, Row
from lingo.ops import random


class Denoising(PairedInput):
    """Rows of a stream of documents, each of which becomes one pair.

    The stream has an end after each document, which is a token as others are, and is cut every L
    tokens, as T5's is: what attends to a whole row may see several documents. An epoch has every
    token once; what of a row is taken out is a function of the seed and the number of the row in
    the run, so another part in each epoch.

    A subclass says how long a text is (`text_length`) and how long rows are (`lengths`), what is
    taken out of a text (`mask`), and what that gives (`pair`).
    """

    @property
    def text_length(self) -> int:
        """L."""
        raise NotImplementedError(f"{type(self).__name__} has no text_length")

    def mask(self, num_tokens: int, key: random.Key) -> np.ndarray:
        """Returns which tokens of a text are taken out, bool [num_tokens].

        Args:
            num_tokens: 2, ..., L.
            key: of the seed and the row.
        """
        raise NotImplementedError(f"{type(self).__name__} has no mask")

    def pair(self, ids: np.ndarray, mask: np.ndarray) -> Pair:
        """Returns what is given of a text, int32 [N], and what is to be predicted."""
        raise NotImplementedError(f"{type(self).__name__} has no pair")

    def row(self, number: int) -> Row:
        pieces = self.pieces(number)
        ids = np.concatenate([np.zeros(0, np.int32), *(self._sequence(p)[1:] for p in pieces)])
        if len(ids) < 2:  # none, or the last token of an epoch: nothing to predict it from
            return Row([], 0)
        mask = self.mask(len(ids), self._key(number))
        is_text = ids != self.tokenizer.end_id
        share = is_text[mask].sum() / max(is_text.sum(), 1)
        return Row([self.pair(ids, mask)], round(share * sum(map(self._num_bytes, pieces))))

    def _make_plan(self) -> Packing:
        seed = self.p.seed if self.p.shuffle else None
        return Stream(self.index.tokens + 1, row_length=self.text_length, seed=seed)

    def _key(self, number: int) -> random.Key:
        root = random.fold(random.root_key(self.p.seed), random.text_hash("denoising"))
        return random.fold(random.fold(root, number >> 32), number & 0xFFFFFFFF)
