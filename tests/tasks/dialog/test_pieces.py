"""Pieces of dialogs: a word has the same ones wherever it stands; other dialogs have others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lingo.data.record_source import TextFiles
from tasks.dialog.pieces import DialogPieces
from tasks.dialog.turns import DialogFiles

pytest.importorskip("sentencepiece", reason="needs pip install 'lingo-tf[text]'")

WORDS = ["currency", "Sweden", "Krona"]


@pytest.fixture
def pieces(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("Gradients of a tensor are tensors. " * 40)
    _write(tmp_path, "What is the currency of Sweden? Swedish Krona. " * 5)
    return DialogPieces.params(
        source=TextFiles.params(pattern=str(tmp_path / "text.txt")),
        dialogs=[DialogFiles.params(pattern=str(tmp_path / "dialogs.jsonl"))],
        vocab_size=300,
    )


def _write(folder: Path, question: str) -> None:
    turns = [{"speaker": "user", "text": question}, {"speaker": "model", "text": "Yes."}]
    (folder / "dialogs.jsonl").write_text(json.dumps({"turns": turns}) + "\n")


def test_a_word_has_the_same_pieces_first_and_later(pieces) -> None:
    tokenizer = pieces.build()
    for word in WORDS:
        first, later = tokenizer.encode(word).tolist(), tokenizer.encode(f"the {word}").tolist()
        assert later[-len(first) :] == first
        assert tokenizer.decode(first) == word


def test_half_of_the_text_is_turns(pieces, tmp_path: Path) -> None:
    texts = pieces.build().texts()
    assert texts[:2] == [b"What is the currency of Sweden? Swedish Krona. " * 5, b"Yes."]
    size = sum(map(len, texts[:2]))
    assert b"".join(texts[2:]) == (tmp_path / "text.txt").read_bytes()[:size]


def test_other_dialogs_have_other_pieces(pieces, tmp_path: Path) -> None:
    first = pieces.build().describe()
    assert pieces.build().describe() == first
    _write(tmp_path, "How much is 12*12? It is a gross. " * 5)
    assert pieces.build().describe() != first
