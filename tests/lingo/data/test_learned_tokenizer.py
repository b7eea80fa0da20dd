"""A tokenizer learns from a sample of all documents, which is the same each time."""

import pytest

from lingo.config.params import ParamError
from lingo.data.learned_tokenizer import sample
from lingo.data.record_source import TextFiles
from lingo.data.sentence_piece import LearnedPieces
from tests.lingo.data.documents import opened


@pytest.fixture
def index(tmp_path):
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text(f"{i:02d}" * 10)
    return opened(TextFiles, tmp_path / "*.txt")


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


def test_no_text_to_learn_from_is_refused_at_build():
    source = TextFiles.params(pattern="nowhere.txt")
    with pytest.raises(ParamError, match="max_bytes"):
        LearnedPieces.params(source=source, vocab_size=300, max_bytes=0).build()
