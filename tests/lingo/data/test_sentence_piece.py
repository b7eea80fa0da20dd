"""A SentencePiece model encodes what it says, in parts as in whole; mistakes are found early."""

import io
import sys

import numpy as np
import pytest

from lingo.config.base.errors import MissingPackage
from lingo.data import part_tokenizer, sentence_piece_training
from lingo.data.files import DataError
from lingo.data.index import open_index
from lingo.data.record_source import TextFiles
from lingo.data.sentence_piece import SentencePiece
from lingo.data.text_input import TextInput

spm = pytest.importorskip("sentencepiece", reason="needs pip install 'lingo-tf[text]'")

TEXT = "\n".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(60)) + "größer\t🙂\n"
SIZE = 320


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.model"
    path.write_bytes(sentence_piece_training.train([TEXT.encode()], vocab_size=SIZE))
    return path


@pytest.fixture
def tokenizer(model):
    return SentencePiece.params(model=str(model), vocab_size=SIZE).build()


def test_text_comes_back(tokenizer):
    for text in ("", "def f(x):\n\n    return x  \n", "größer 🙂\tnot in it: \u4e00", " a"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_are_those_of_the_package(tokenizer, model):
    processor = spm.SentencePieceProcessor(model_file=str(model))
    assert tokenizer.encode(TEXT).tolist() == processor.encode(TEXT)
    assert tokenizer.encode(TEXT).dtype == np.int32
    assert len(tokenizer.encode(TEXT)) < len(TEXT)


def test_special_ids_are_the_model_s_and_decode_to_nothing(tokenizer):
    special = [tokenizer.pad_id, tokenizer.end_id, tokenizer.start_id]
    assert special == [0, 1, 2]
    assert tokenizer.decode([*special, *tokenizer.encode("return").tolist(), -1, 10**9]) == "return"


def test_a_model_without_padding_and_start_uses_its_end(tmp_path):
    data = io.BytesIO()
    lines = iter(TEXT.encode().split(b"\n"))
    spm.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=data, vocab_size=50, bos_id=-1, minloglevel=2
    )
    (tmp_path / "other.model").write_bytes(data.getvalue())
    other = SentencePiece.params(model=str(tmp_path / "other.model"), vocab_size=50).build()
    assert (other.pad_id, other.start_id, other.end_id) == (2, 2, 2)


@pytest.mark.parametrize("block_bytes", [40, 64, 1000])
def test_documents_are_encoded_in_blocks_that_change_no_token(tokenizer, block_bytes, monkeypatch):
    data, whole = TEXT.encode(), tokenizer.encode(TEXT)
    monkeypatch.setattr(part_tokenizer, "PART_BYTES", block_bytes)
    num_read = []

    def read(start, stop):
        num_read.append(stop - start)
        return data[start:stop]

    np.testing.assert_array_equal(tokenizer.encode(TEXT), whole)
    tokens, cuts = tokenizer.measure(read, len(data))
    assert tokens == len(whole)
    assert len(cuts) >= len(data) // block_bytes
    num_read.clear()
    for begin, end in ((0, 5), (100, 130), (300, 301), (len(whole) - 3, len(whole))):
        part = tokenizer.part(read, len(data), np.array(cuts), begin, end)
        np.testing.assert_array_equal(part, whole[begin:end])
    assert num_read[2] <= block_bytes


def test_a_text_without_lines_and_words_is_cut_between_characters(tokenizer, monkeypatch):
    monkeypatch.setattr(part_tokenizer, "PART_BYTES", 7)
    for text in ("é" * 50, "🙂" * 50, "x" * 50, "aé🙂" * 9):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    tokenizer.encode(b"\x80" * 50)  # is no text, and ends


def test_rows_of_a_long_document_are_slices_of_its_tokens_and_bytes(tokenizer, tmp_path):
    text = TEXT * 10  # several blocks
    (tmp_path / "long.txt").write_text(text)
    input = TextInput.params(
        source=TextFiles.params(pattern=str(tmp_path / "long.txt")),
        tokenizer=tokenizer.p.copy(),
        **{"batch_size": 1, "length": 50, "shuffle": False, "repeat": False},
    ).build()
    batches = [input.batch(step) for step in range(input.num_batches())]
    targets = np.concatenate([b["targets"][b["segments"] > 0] for b in batches])
    np.testing.assert_array_equal(targets, [*tokenizer.encode(text), tokenizer.end_id])
    assert input.offers() == {"vocab_size": SIZE}
    assert sum(int(batch["bytes"].sum()) for batch in batches) == len(text.encode())
    first_row = input.tokenizer.decode(batches[0]["targets"][0]).encode()
    assert int(batches[0]["bytes"][0]) == pytest.approx(len(first_row), rel=0.3)


def test_the_name_changes_with_the_file(model, tmp_path):
    other = tmp_path / "other.model"
    other.write_bytes(sentence_piece_training.train([TEXT.encode() * 2 + b"z"], vocab_size=SIZE))
    names = {
        SentencePiece.params(model=str(path), vocab_size=SIZE).build().describe()
        for path in (model, other, model)
    }
    assert len(names) == 2


def test_building_reads_nothing():
    assert SentencePiece.params(model="/nowhere", vocab_size=7).build().vocab_size == 7


def test_a_wrong_vocab_size_or_file_is_found_when_data_is_opened(model, tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "empty.model").touch()

    def opening(path, size):
        tokenizer = SentencePiece.params(model=str(path), vocab_size=size).build()
        open_index(TextFiles.params(pattern=f"{tmp_path}/a.txt").build(), tokenizer)

    with pytest.raises(DataError, match=f"vocab_size=99, but .* has {SIZE} pieces: set vocab_size"):
        opening(model, 99)
    for bad in (tmp_path / "a.txt", tmp_path / "empty.model"):
        with pytest.raises(DataError, match="is not a SentencePiece model"):
            opening(bad, SIZE)
    with pytest.raises(DataError, match=r"gone\.model cannot be read: No such file"):
        opening(tmp_path / "gone.model", SIZE)


def test_a_missing_package_is_named_with_what_installs_it(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[text\]'"):
        SentencePiece.params(model=str(model), vocab_size=SIZE).build().describe()
