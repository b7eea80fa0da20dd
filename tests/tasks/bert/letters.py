"""A tokenizer whose tokens are characters: a small letter continues the word before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lingo.data.tokenizer import Tokenizer, as_bytes

PAD, UNKNOWN, START, END, MASK = range(5)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Letters(Tokenizer):
    """ASCII characters, in the order of their codes, after BERT's special tokens."""

    vocab_size = 133

    @property
    def start_id(self) -> int:
        return START

    @property
    def end_id(self) -> int:
        return END

    def special_id(self, token: str) -> int | None:
        return SPECIAL.index(token) if token in SPECIAL else None

    def special_ids(self) -> np.ndarray:
        return np.arange(5, dtype=np.int32)

    def word_continuations(self) -> np.ndarray:
        return np.array([i >= 5 and chr(i - 5).islower() for i in range(self.vocab_size)])

    def describe(self) -> str:
        return "letters"

    def encode(self, text: str | bytes) -> np.ndarray:
        return np.frombuffer(as_bytes(text), np.uint8).astype(np.int32) + 5

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return "".join(SPECIAL[i] if i < 5 else chr(i - 5) for i in np.asarray(ids).tolist())
