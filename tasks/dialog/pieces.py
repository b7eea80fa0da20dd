"""Word pieces that are learned from dialogs and from other text."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from lingo.data.sentence_piece import LearnedPieces
from tasks.dialog.turns import DialogSource


class DialogPieces(LearnedPieces):
    """Pieces learned from turns of dialogs, and from as many bytes of text of `source`.

    Needs `pip install 'lingo-tf[dialog,text]'`. A word has the same pieces at the beginning of a
    turn as later in it, so that a model can copy the word from one turn to another.
    """

    dialogs: list[DialogSource]  # the turns to learn from
    adds_space: bool = True  # whether a space is added before each turn

    def texts(self) -> Sequence[bytes]:
        dialogs = [dialog for source in self._sources for dialog in source.dialogs()]
        turns = [turn.text.encode() for dialog in dialogs for turn in dialog.turns]
        max_bytes = min(sum(map(len, turns)), self.p.max_bytes)
        return [*turns, *self.sample_source(max_bytes=max_bytes)]

    def text_id(self) -> str:
        return " ".join([super().text_id(), *(source.content_id() for source in self._sources)])

    @functools.cached_property
    def _sources(self) -> list[DialogSource]:
        return [source.build() for source in self.p.dialogs]
