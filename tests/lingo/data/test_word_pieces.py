"""A learned WordPiece splits words as BERT does; equal texts give equal pieces."""

import hashlib
import re
import subprocess
import sys
import unicodedata

import numpy as np
import pytest

from lingo.config.base.errors import MissingPackage
from lingo.config.params import ParamError
from lingo.data import word_pieces
from lingo.data.files import DataError
from lingo.data.hugging_face_tokenizer import HuggingFaceTokenizer
from lingo.data.index import open_index
from lingo.data.record_source import TextFiles
from lingo.data.tokenizer import ByteTokenizer
from lingo.data.word_pieces import LearnedWordPieces, WordPieces, learn_word_pieces
from lingo.datasets.docstrings import Docstrings

library = pytest.importorskip("tokenizers", reason="needs pip install 'lingo-tf[tokenizers]'")

TEXT = "".join(
    f"The {a}er {b}ed, {b}ing a {c}; Größe: {a}{c}!\n"
    for a in ("paint", "read", "teach", "play")
    for b in ("walk", "jump", "paint", "play", "talk")
    for c in ("house", "tree", "garden", "road")
)
SIZE = 120


@pytest.fixture
def learned(tmp_path):
    """Pieces of a file."""
    (tmp_path / "text.txt").write_text(TEXT)
    source = TextFiles.params(pattern=str(tmp_path / "text.txt"))
    return LearnedWordPieces.params(source=source, vocab_size=SIZE)


@pytest.fixture
def tokenizer(learned):
    return learned.build()


def vocabulary_of(tokenizer):
    return tokenizer._model.tokenizer.get_vocab()


def split_slowly(text, vocabulary):
    """Returns ids by greedy longest match from the left (Devlin et al. 2019, its code)."""
    letters = unicodedata.normalize("NFD", text.lower())
    plain = "".join(c for c in letters if unicodedata.category(c) != "Mn")
    ids = []
    for word in re.findall(r"\w+|[^\w\s]", plain):
        at, pieces = 0, []
        while at < len(word):
            prefix = "##" if at else ""
            ends = [e for e in range(len(word), at, -1) if prefix + word[at:e] in vocabulary]
            if not ends:
                pieces = [vocabulary["[UNK]"]]
                break
            pieces.append(vocabulary[prefix + word[at : ends[0]]])
            at = ends[0]
        ids += pieces
    return ids


def test_words_are_split_as_bert_does(tokenizer):
    vocabulary = vocabulary_of(tokenizer)
    for text in (TEXT, "Repainting GARDENS, größer, a zoo? x", "", "readhousetree"):
        assert tokenizer.encode(text).tolist() == split_slowly(text, vocabulary)
    assert 1 in tokenizer.encode("zoo?")  # [UNK]: the text has no z


def test_special_tokens_have_fixed_ids_and_are_in_no_text(tokenizer):
    named = [
        tokenizer.special_id(token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    ]
    assert named == [0, 1, 2, 3, 4]
    assert (tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id) == (0, 2, 3)
    assert tokenizer.special_ids().tolist() == named
    assert tokenizer.special_id("[NONE]") is None
    ids = tokenizer.encode("[MASK] the [SEP]")
    assert not set(ids.tolist()) & {0, 2, 3, 4}
    assert tokenizer.decode([2, *tokenizer.encode("the garden"), 3, 0]) == "the garden"


def test_pieces_that_continue_a_word_are_known(tokenizer):
    continues, vocabulary = tokenizer.word_continuations(), vocabulary_of(tokenizer)
    assert (continues.dtype, continues.shape) == (bool, (SIZE,))
    assert {p for p, i in vocabulary.items() if continues[i]} == {
        p for p in vocabulary if p.startswith("##")
    }
    ids = tokenizer.encode("paintgarden, readtree")
    words = np.split(ids, np.flatnonzero(~continues[ids])[1:])
    assert [tokenizer.decode(word) for word in words] == ["paintgarden", ",", "readtree"]


def test_what_is_frequent_is_one_piece(tokenizer):
    assert len(tokenizer.encode("the garden")) == 2
    assert len(tokenizer.encode("nedrag")) > 2


def test_case_and_accents_stay_if_asked(learned):
    cased = learned.copy().set(lowercase=False).build()
    assert cased.decode(cased.encode("The Größe")) == "The Größe"
    assert learned.build().decode(learned.build().encode("The Größe")) == "the große"
    assert cased.describe() != learned.build().describe()


def test_every_process_learns_the_same_pieces():
    code = (
        "import hashlib, sys; from lingo.data.word_pieces import learn_word_pieces as learn;"
        "print(hashlib.sha256(learn([sys.argv[1].encode()], vocab_size=120, lowercase=True))"
        ".hexdigest())"
    )
    mine = hashlib.sha256(
        learn_word_pieces([TEXT.encode()], vocab_size=SIZE, lowercase=True)
    ).hexdigest()
    for _ in range(2):  # the library's hash tables differ from process to process
        run = [sys.executable, "-c", code, TEXT]
        assert subprocess.run(run, check=True, capture_output=True, text=True).stdout == f"{mine}\n"


def test_characters_beyond_the_most_frequent_are_unknown(monkeypatch):
    monkeypatch.setattr(word_pieces, "_MAX_CHARACTERS", 3)
    data = learn_word_pieces([b"aaa bb ab ba c d aab bba"], vocab_size=12, lowercase=True)
    vocabulary = library.Tokenizer.from_buffer(data).get_vocab()
    characters = {p.removeprefix("##") for p in vocabulary if p not in word_pieces.SPECIAL}
    assert set("".join(characters)) == {"a", "b", "c"}


def _fail(*_, **__):
    raise RuntimeError("learned again")


def test_pieces_are_kept_until_the_text_changes(learned, tmp_path, monkeypatch):
    first = learned.build().describe()
    with monkeypatch.context() as patched:
        patched.setattr(word_pieces, "learn_word_pieces", _fail)
        assert learned.build().describe() == first
        (tmp_path / "text.txt").write_text(TEXT.replace("garden", "market"))
        with pytest.raises(RuntimeError, match="learned again"):
            learned.build().describe()
    assert learned.build().describe() != first


def test_pieces_do_without_their_cache(learned, tmp_path):
    first = learned.build().describe()
    (kept,) = (tmp_path / "cache" / "lingo" / "pieces").iterdir()
    other = learn_word_pieces([TEXT.encode()], vocab_size=SIZE - 1, lowercase=True)
    for damaged in (b"", b"no tokenizer", other):
        kept.write_bytes(damaged)
        assert learned.build().describe() == first


def test_what_does_not_fit_together_is_refused(learned):
    with pytest.raises(
        ParamError, match="vocab_size=5 leaves no room for word pieces: five ids are special"
    ):
        learned.copy().set(vocab_size=5).build()
    with pytest.raises(
        DataError, match=r"vocab_size=30 is too small for the characters .* need at least "
    ):
        learned.copy().set(vocab_size=30).build().describe()
    with pytest.raises(DataError, match=r"bytes of text are too few .* most (\d+) pieces") as error:
        learned.copy().set(vocab_size=100_000).build().describe()
    most = int(re.findall(r"vocab_size=(\d+)\.", str(error.value))[0])
    assert learned.copy().set(vocab_size=most).build().encode("the").tolist()


def test_a_missing_package_is_named_with_what_installs_it(learned, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[tokenizers\]'"):
        learned.build().describe()


def test_a_file_of_bert_s_knows_its_words_and_tokens(learned, tmp_path):
    data = learn_word_pieces([TEXT.encode()], vocab_size=SIZE, lowercase=True)
    (tmp_path / "tokenizer.json").write_bytes(data)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}'
    )
    file = str(tmp_path / "tokenizer.json")
    other = HuggingFaceTokenizer.params(file=file, vocab_size=SIZE + 3).build()
    assert (other.pad_id, other.start_id, other.end_id) == (0, 2, 3)
    assert other.special_id("[MASK]") == 4
    assert other.special_ids().tolist() == [0, 1, 2, 3, 4, SIZE, SIZE + 1, SIZE + 2]
    continues = learned.build().word_continuations()
    np.testing.assert_array_equal(other.word_continuations(), [*continues, False, False, False])


def write_vocabulary(tokenizer, path):
    """Writes the pieces of a tokenizer in the order of their ids, one on each line."""
    vocabulary = vocabulary_of(tokenizer)
    path.write_text("".join(f"{piece}\n" for piece in sorted(vocabulary, key=vocabulary.get)))


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_vocabulary_of_bert_s_splits_as_the_tokenizer_that_it_lists(learned, tmp_path, lowercase):
    first = learned.set(lowercase=lowercase).build()
    write_vocabulary(first, tmp_path / "vocab.txt")
    listed = WordPieces.params(
        file=str(tmp_path / "vocab.txt"), vocab_size=SIZE, lowercase=lowercase
    ).build()
    for text in (TEXT, "Repainting GARDENS, größer, a zoo? [SEP] x", ""):
        assert listed.encode(text).tolist() == first.encode(text).tolist()
    assert listed.describe() == first.describe()


def test_a_damaged_vocabulary_is_told(tokenizer, tmp_path):
    path = tmp_path / "vocab.txt"
    write_vocabulary(tokenizer, path)
    pieces = path.read_text()
    cfg = WordPieces.params(file=str(path), vocab_size=SIZE)
    for text, words in (
        (pieces.replace("[MASK]\n", ""), r"has no piece \[MASK\]: .* \[MASK\] included"),
        ("", r"has no piece \[PAD\]"),
        (pieces + "more\n", "has 121 pieces: set vocab_size=121"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            cfg.build().describe()
    path.write_bytes(pieces.encode() + b"\xff\n")
    with pytest.raises(DataError, match=r"vocab\.txt is not UTF-8"):
        cfg.build().describe()
    path.write_text(pieces.replace("\n", "\r\n"), newline="")
    assert cfg.build().describe() == tokenizer.describe()


def test_learned_pieces_go_to_the_hub_with_the_tokens_at_both_ends(tokenizer, tmp_path):
    for name, content in tokenizer.hub_files().items():
        (tmp_path / name).write_bytes(content)
    file = tmp_path / "tokenizer.json"
    assert library.Tokenizer.from_file(str(file)).encode("the garden").ids == [
        tokenizer.start_id,
        *tokenizer.encode("the garden"),
        tokenizer.end_id,
    ]
    read = HuggingFaceTokenizer.params(file=str(file), vocab_size=SIZE).build()
    assert (read.pad_id, read.start_id, read.end_id) == (0, 2, 3)
    assert read.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


def test_tokenizers_without_words_say_so(tmp_path):
    with pytest.raises(DataError, match="tokenizer bytes does not tell which tokens continue"):
        ByteTokenizer.params().build().word_continuations()
    assert ByteTokenizer.params().build().special_ids().tolist() == [0, 1, 2]
    path = tmp_path / "tokenizer.json"
    path.write_text(library.Tokenizer(library.models.WordLevel({"a": 0}, unk_token="a")).to_str())
    plain = HuggingFaceTokenizer.params(file=str(path), vocab_size=1, end="a").build()
    with pytest.raises(DataError, match=r"tokenizer\.json has no piece that begins with ##"):
        plain.word_continuations()


def test_docstrings_are_learned_from_and_encoded_in_parts():
    source = Docstrings.params(packages=["rich"])
    tokenizer = LearnedWordPieces.params(source=source, vocab_size=1000).build()
    index = open_index(source.build(), tokenizer)
    document = int(np.argmax(index.units))
    whole = tokenizer.encode(index.read(document, 0, int(index.size[document])))
    np.testing.assert_array_equal(index.encode(document, 0, int(index.units[document])), whole)
    np.testing.assert_array_equal(index.encode(document, 7, 30), whole[7:30])
    assert (whole == 1).mean() < 0.01
