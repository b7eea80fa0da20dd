"""A tokenizer learns from what the sources hold; too little text is an error."""

import pytest

from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.record_source import TextFiles
from lingo.data.sentence_piece import SentencePiece
from lingo.data.sentence_piece_training import sample, train
from tests.lingo.data.documents import opened

pytest.importorskip("sentencepiece", reason="needs pip install 'lingo-tf[text]'")

WORDS = ("the", "cat", "sat", "mat", "and", "dog", "on", "hat", "rat", "in", "a", "house")
LINES = [f" {a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]
TEXT = "\n\t".join(LINES).encode()


@pytest.fixture
def index(tmp_path):
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text(f"{i:02d}" * 10)
    return opened(TextFiles, tmp_path / "*.txt")


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_what_is_frequent_becomes_a_piece(model_type, tmp_path):
    (tmp_path / "m").write_bytes(train([TEXT], vocab_size=278, model_type=model_type))
    tokenizer = SentencePiece.params(model=str(tmp_path / "m"), vocab_size=278).build()
    assert len(tokenizer.encode(" the cat")) < len(" the cat")
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT.decode()


def test_long_lines_are_learned_from_too():
    assert train([TEXT.replace(b"\n\t", b" ")], vocab_size=278)


def test_too_little_text_says_what_is_possible():
    with pytest.raises(
        DataError, match=r"bytes of text are too few for vocab_size=5000: .* most \d+ pieces"
    ):
        train([TEXT], vocab_size=5000)
    with pytest.raises(DataError, match="vocab_size=261 is too small for the characters"):
        train([TEXT], vocab_size=261)
    with pytest.raises(DataError, match="0 bytes of text train no tokenizer"):
        train([], vocab_size=300)
    with pytest.raises(ParamError, match="vocab_size=260 leaves no piece beside the 260 ids"):
        train([TEXT], vocab_size=260)


def test_a_sample_is_all_documents_or_some_drawn_from_all_sources(index):
    whole = sample([index, index], max_bytes=10**9)
    assert sorted(whole) == sorted(2 * [f"{i:02d}".encode() * 10 for i in range(20)])
    seen = []
    some = sample([index], max_bytes=110, progress=lambda *at: seen.append(at))
    assert [len(text) for text in some] == [20, 20, 20, 20, 20, 10]
    assert len({text[:2] for text in some}) == 6
    assert [text[:2] for text in some] != [b"00", b"01", b"02", b"03", b"04", b"05"]
    assert seen[-1] == (110, 110)
    assert sample([index], max_bytes=110) == some
