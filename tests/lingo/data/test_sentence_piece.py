"""A SentencePiece model encodes what it says, in parts as in whole; mistakes are found early."""

import io
import sys

import numpy as np
import pytest

from lingo.config.base.errors import MissingPackage
from lingo.config.params import ParamError
from lingo.data import part_tokenizer, sentence_piece
from lingo.data.document_input import TextInput
from lingo.data.files import DataError
from lingo.data.index import open_index
from lingo.data.record_source import TextFiles
from lingo.data.sentence_piece import LearnedPieces, SentencePiece, train
from tests.lingo.data import mixed_text as mixed
from tests.lingo.data.mixed_text import SETTINGS, mixed_text

spm = pytest.importorskip("sentencepiece", reason="needs pip install 'lingo-tf[text]'")

TEXT = "\n".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(60)) + "größer\t🙂\n"
SIZE, FEW = 320, 300


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small.model"
    path.write_bytes(train([TEXT.encode()], vocab_size=SIZE))
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
    other.write_bytes(train([TEXT.encode() * 2 + b"z"], vocab_size=SIZE))
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


SAMPLE = mixed_text(0, 60_000)
TEXTS = [mixed_text(seed, 20_000).encode() for seed in (1, 2, 3)]
LOSSLESS = ("unigram, blanks kept", "bpe, as Llama")
BLANK = b"   x \n\n  y   z\t\n   "


@pytest.fixture(scope="module", params=SETTINGS)
def settled(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "a.model"
    path.write_bytes(mixed.train(SETTINGS[request.param], SAMPLE))
    processor = spm.SentencePieceProcessor(model_file=str(path))
    size = processor.vocab_size()
    return request.param, SentencePiece.params(model=str(path), vocab_size=size).build(), processor


def test_tokens_are_those_of_the_package(settled):
    name, tokenizer, processor = settled
    for text in (*TEXTS, BLANK, b"", b" ", b"\n", TEXTS[0][:4000].replace(b" ", b"")):
        ids = tokenizer.encode(text)
        assert ids.tolist() == processor.encode(text)
        assert tokenizer.decode(ids) == processor.decode(processor.encode(text))
        if name in LOSSLESS:
            assert tokenizer.decode(ids) == text.decode(errors="replace").replace("\u2581", " ")


def test_parts_have_the_tokens_of_the_whole(settled, monkeypatch):
    name, tokenizer, processor = settled
    monkeypatch.setattr(part_tokenizer, "PART_BYTES", 200)
    for data in (*TEXTS, BLANK * 50):
        whole, num_read = np.array(processor.encode(data)), []

        def read(start, stop, data=data, num_read=num_read):
            num_read.append(stop - start)
            return data[start:stop]

        num, cuts = tokenizer.measure(read, len(data))
        assert num == len(whole)
        for begin in range(0, num, 97):
            end = min(begin + 41, num)
            part = tokenizer.part(read, len(data), np.array(cuts).reshape(-1, 2), begin, end)
            np.testing.assert_array_equal(part, whole[begin:end])
        if name in LOSSLESS:  # others join unknown characters to one token, however many they are
            assert len(cuts) > len(data) / 1000
            assert np.median(num_read[1:]) <= 600


def test_a_long_document_is_encoded_in_segments(settled, monkeypatch):
    name, tokenizer, processor = settled
    if name in ("words", "characters"):
        pytest.skip("unknown words next to each other are one token in a segment")
    monkeypatch.setattr(SentencePiece, "segment_bytes", 5000)
    for text in TEXTS:
        assert tokenizer.encode(text).tolist() == processor.encode(text)


WORDS = ("the", "cat", "sat", "mat", "and", "dog", "on", "hat", "rat", "in", "a", "house")
LINES = [f" {a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]
LEARNED = "\n\t".join(LINES).encode()


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_what_is_frequent_becomes_a_piece(model_type, tmp_path):
    (tmp_path / "m").write_bytes(train([LEARNED], vocab_size=278, model_type=model_type))
    tokenizer = SentencePiece.params(model=str(tmp_path / "m"), vocab_size=278).build()
    assert len(tokenizer.encode(" the cat")) < len(" the cat")
    assert tokenizer.decode(tokenizer.encode(LEARNED)) == LEARNED.decode()


def test_long_lines_are_learned_from_too():
    assert train([LEARNED.replace(b"\n\t", b" ")], vocab_size=278)


def test_too_little_text_says_what_is_possible():
    with pytest.raises(
        DataError, match=r"bytes of text are too few for vocab_size=5000: .* most \d+ pieces"
    ):
        train([LEARNED], vocab_size=5000)
    with pytest.raises(DataError, match="vocab_size=261 is too small for the characters"):
        train([LEARNED], vocab_size=261)
    with pytest.raises(DataError, match="0 bytes of text cannot train a tokenizer"):
        train([], vocab_size=300)
    with pytest.raises(ParamError, match="vocab_size=260 leaves no room for pieces"):
        train([LEARNED], vocab_size=260)


@pytest.fixture
def learned(tmp_path, monkeypatch):
    """Pieces of a file, which are kept in a folder of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "code.txt").write_text(TEXT)
    return LearnedPieces.params(
        source=TextFiles.params(pattern=str(tmp_path / "code.txt")), vocab_size=FEW
    )


def _fail(*_, **__):
    raise RuntimeError("learned again")


def test_learned_pieces_are_a_model_of_the_source_s_text_with_digits_alone(learned):
    made = train([TEXT.encode()], vocab_size=FEW, model_type="bpe", split_digits=True)
    processor = spm.SentencePieceProcessor(model_proto=made)
    tokenizer = learned.build()
    text = "def f57(x):\n    return größer + 4711"
    assert tokenizer.encode(text).tolist() == processor.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert not [i for i in range(260, FEW) if sum(map(str.isdigit, processor.id_to_piece(i))) > 1]
    assert tokenizer.vocab_size == FEW


def test_a_first_word_has_the_pieces_of_a_later_one_if_a_space_is_added(learned):
    tokenizer, plain = learned.copy().set(adds_space=True).build(), learned.build()
    for text in ("return x", "  two spaces", "größer\n  f7 \n"):
        later = tokenizer.encode(f"x {text}").tolist()
        first = tokenizer.encode(text).tolist()
        assert later[-len(first) :] == first
        assert tokenizer.decode(first) == text
    assert plain.encode("return").tolist() != tokenizer.encode("return").tolist()
    assert plain.describe() != tokenizer.describe()


def test_learned_pieces_are_kept_until_the_text_changes(learned, tmp_path, monkeypatch):
    first = learned.build().describe()
    with monkeypatch.context() as patched:
        patched.setattr(sentence_piece, "train", _fail)
        assert learned.build().describe() == first
        (tmp_path / "code.txt").write_text(TEXT.replace("return", "yield"))
        with pytest.raises(RuntimeError, match="learned again"):
            learned.build().describe()
    assert learned.build().describe() != first


def test_learned_pieces_do_without_their_cache(learned, tmp_path):
    first = learned.build().describe()
    (kept,) = (tmp_path / "cache" / "lingo" / "pieces").iterdir()
    kept.write_bytes(b"not a model")
    assert learned.build().describe() == first
    kept.unlink()
    kept.parent.rmdir()
    kept.parent.write_text("no folder can be here")
    assert learned.build().describe() == first


def test_bad_learned_pieces_are_found_early(learned):
    with pytest.raises(ParamError, match="leaves no room for pieces"):
        learned.set(vocab_size=260).build()
    with pytest.raises(ParamError, match="max_bytes"):
        learned.set(vocab_size=FEW, max_bytes=0).build()
    with pytest.raises(DataError, match="too few for vocab_size=100000"):
        learned.set(vocab_size=100_000, max_bytes=10**6).build().describe()
