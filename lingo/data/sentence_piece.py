"""SentencePiece tokenizers (Kudo & Richardson 2018): a vocabulary of pieces, learned from text."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

import numpy as np

from lingo.config.base.types import FilePath
from lingo.data.files import DataError, open_file
from lingo.data.part_tokenizer import PartTokenizer
from lingo.data.piece_model import PieceModel


class SentencePiece(PartTokenizer):
    """A SentencePiece model file. `pip install 'lingo-tf[text]'`.

    The ids of padding, start and end are the model's; its end id replaces a padding or start id
    that it lacks.
    """

    model: FilePath  # path of the .model file
    vocab_size: int  # number of pieces in it; checked when it is opened
    segment_bytes = 2**23  # the package needs up to a hundred times the memory

    def setup(self) -> None:
        self.vocab_size = self.p.vocab_size

    @property
    def pad_id(self) -> int:
        return self._or_end(self._model.processor.pad_id())

    @property
    def start_id(self) -> int:
        return self._or_end(self._model.processor.bos_id())

    @property
    def end_id(self) -> int:
        return self._model.processor.eos_id()

    def describe(self) -> str:
        return f"SentencePiece {self.vocab_size} sha256:{self._model.digest}"

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        special = {self.pad_id, self.start_id, self.end_id}
        pieces = [int(i) for i in ids if 0 <= i < self.vocab_size and i not in special]
        return self._model.processor.decode(pieces)

    def _or_end(self, token: int) -> int:
        return token if token >= 0 else self.end_id

    @functools.cached_property
    def _model(self) -> PieceModel:
        """The model, read and checked at first use."""
        path = os.path.expanduser(self.p.model)
        with open_file(path) as file:
            data = file.read()
        not_a_model = DataError(f"{path} is not a SentencePiece model.")
        if not data:  # the package would make an empty model
            raise not_a_model
        try:
            model = PieceModel(data)
        except RuntimeError:
            raise not_a_model from None
        num_pieces = model.processor.vocab_size()
        if num_pieces != self.vocab_size:
            raise DataError(
                f"tokenizer.vocab_size={self.vocab_size}, but {path} has {num_pieces} pieces:"
                f" set vocab_size={num_pieces}."
            )
        if model.processor.eos_id() < 0:
            raise DataError(f"tokenizer {path} has no piece for the end of a text (eos).")
        return model
