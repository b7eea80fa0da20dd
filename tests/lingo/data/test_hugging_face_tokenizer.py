"""Tokens are those of the library `tokenizers`, in parts as in whole; mistakes are found early."""

import json
import os
import random
import sys

import numpy as np
import pytest

from lingo.config.base.errors import MissingPackage
from lingo.data import part_tokenizer
from lingo.data.bucketed_input import BucketedInput
from lingo.data.document_input import TextInput
from lingo.data.files import DataError
from lingo.data.hugging_face_tokenizer import HuggingFaceTokenizer
from lingo.data.index import open_index
from lingo.data.objectives.denoising import SpanCorruption
from lingo.data.objectives.sentinels import OwnSentinelTokenizer, SentinelTokenizer
from lingo.data.pairs.pair_input import PairInput
from lingo.data.record_source import TextFiles
from lingo.data.sources.pair_files import JsonlPairs
from tests.lingo.data.documents import reader
from tests.lingo.data.mixed_text import mixed_text

library = pytest.importorskip("tokenizers", reason="needs pip install 'lingo-tf[tokenizers]'")
tokenizer_files = pytest.importorskip("tests.lingo.data.tokenizer_files")
CODE = "".join(f"def f{i}(x):\n    return x + {i}  # it's größer\n" for i in range(60))
TEXT = CODE + "\t🙂 \u4e2d\u6587\u5b57 e\u0301\r\n\r\n  two  blanks <s> </s> end "
SAMPLE = mixed_text(0, 20_000)
KINDS = tokenizer_files.KINDS
LOSSLESS = ("gpt2", "llama3", "llama2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for each kind, with tokenizer.json and tokenizer_config.json."""
    folder = tmp_path_factory.mktemp("tokenizers")
    tokenizer_files.write_tokenizers(folder, [TEXT])
    return folder


def build(path, **fields):
    """Returns the tokenizer of a file, with `vocab_size` that of the file."""
    size = library.Tokenizer.from_file(str(path)).get_vocab_size()
    return HuggingFaceTokenizer.params(file=str(path), **{"vocab_size": size, **fields}).build()


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def tokenizer(folder, kind):
    return build(folder / kind / "tokenizer.json")


@pytest.fixture
def of_library(folder, kind):
    return library.Tokenizer.from_file(str(folder / kind / "tokenizer.json"))


def test_ids_are_those_of_the_library_for_a_whole_text(tokenizer, of_library):
    for text in (TEXT, SAMPLE, "", " ", "\n", " a", "a ", "  two", "\u4e2d\u6587", "e\u0301🙂"):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int32
        assert ids.tolist() == of_library.encode(text, add_special_tokens=False).ids


def test_decoded_texts_are_those_of_the_library(kind, tokenizer, of_library):
    for text in ("return x + 1", TEXT, SAMPLE, ""):
        ids = tokenizer.encode(text)
        found = tokenizer.decode(ids)
        assert found == of_library.decode(ids.tolist())
    if kind in LOSSLESS:
        for text in (CODE, SAMPLE.replace("\u2581", ""), " a", "  two  blanks\r\n"):
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_ids_are_those_of_tokenizer_config_and_decode_to_nothing(tokenizer):
    special = [tokenizer.pad_id, tokenizer.end_id, tokenizer.start_id]
    assert special == [0, 1, 2]
    ids = [*special, *tokenizer.encode("return").tolist(), -1, 10**12, tokenizer.vocab_size]
    assert tokenizer.decode(ids) == tokenizer.decode(tokenizer.encode("return"))


def test_special_tokens_of_a_text_are_tokens_or_other_text(folder, kind, tokenizer):
    text = "a </s> b"
    assert 1 in tokenizer.encode(text)
    other = build(folder / kind / "tokenizer.json", special_in_text=False)
    if kind != "t5":  # a Unigram model finds it in its vocabulary
        assert 1 not in other.encode(text)
    if kind in LOSSLESS:
        assert other.decode(other.encode(text)) == text
    assert other.describe() != tokenizer.describe()


@pytest.mark.parametrize("part_bytes", [40, 300])
def test_tokens_of_parts_are_slices_of_those_of_the_document(
    kind, tokenizer, of_library, part_bytes, monkeypatch
):
    monkeypatch.setattr(part_tokenizer, "PART_BYTES", part_bytes)
    for text in (CODE * 2, SAMPLE[:6000], "\u4e2d\u6587\u5b57" * 300, "x" * 900):
        data = text.encode()
        whole = of_library.encode(text, add_special_tokens=False).ids
        tokens, cuts = tokenizer.measure(reader(data), len(data))
        assert tokens == len(whole)
        points = np.array(cuts, np.int64).reshape(-1, 2)
        for begin in range(0, len(whole), max(1, len(whole) // 9)):
            part = tokenizer.part(reader(data), len(data), points, begin, len(whole))
            np.testing.assert_array_equal(part, whole[begin:])
        if text.startswith("def"):
            assert len(cuts) >= len(data) // part_bytes - 1


def test_segments_of_a_long_document_change_no_token(tokenizer, of_library, monkeypatch):
    monkeypatch.setattr(HuggingFaceTokenizer, "segment_bytes", 500)
    text = CODE * 3 + SAMPLE.replace("\n", " ")
    whole = of_library.encode(CODE * 3, add_special_tokens=False).ids
    assert tokenizer.encode(CODE * 3).tolist() == whole
    data = text.encode()
    assert tokenizer.measure(reader(data), len(data)).tokens == len(tokenizer.encode(text))


def test_bytes_that_are_no_text_become_replacement_characters(folder):
    tokenizer = build(folder / "gpt2" / "tokenizer.json")
    assert tokenizer.decode(tokenizer.encode(b"a\xffb")) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode("a\udcffb")) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode("\u05d0")[:1]) == "\ufffd"  # half a character


def test_settings_for_batches_and_dropout_of_the_file_change_nothing(folder, tmp_path):
    values = json.loads((folder / "gpt2" / "tokenizer.json").read_text())
    tokenizer = library.Tokenizer.from_str(json.dumps(values))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    values = json.loads(tokenizer.to_str())
    values["model"]["dropout"] = 0.5
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    changed = build(tmp_path / "tokenizer.json", end="</s>")
    whole = build(folder / "gpt2" / "tokenizer.json")
    for text in ("a", CODE):
        np.testing.assert_array_equal(changed.encode(text), whole.encode(text))


def test_special_tokens_may_be_named_and_missing_ones_are_the_end(folder, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text((folder / "t5" / "tokenizer.json").read_text())
    ids = [
        (tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id)
        for tokenizer in (
            build(path, end="</s>"),
            build(path, end="</s>", start="<pad>", pad="<pad>"),
        )
    ]
    assert ids == [(1, 1, 1), (0, 1, 0)]
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": null, "eos_token": "<s>"}')
    assert build(path).end_id == build(path).start_id == 2
    assert build(path, end="</s>").end_id == 1
    with pytest.raises(DataError, match=r"tokenizer.pad is '<pat>', but .* Did you mean '<pad>'"):
        _ = build(path, pad="<pat>").pad_id
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    with pytest.raises(DataError, match=r"eos_token of tokenizer_config\.json is '<end>'"):
        _ = build(path).end_id
    for text, wanted in (("{", "is not JSON"), ("[" * 10**5, "is not JSON"), ("[]", "object")):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(DataError, match=wanted):
            _ = build(path).end_id
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(DataError, match=r"\(eos_token\): set tokenizer\.end, such as end=</s>"):
        _ = build(path).end_id


def test_a_model_may_have_more_rows_than_the_file_has_ids(folder):
    path = folder / "gpt2" / "tokenizer.json"
    assert build(path, vocab_size=512).vocab_size == 512
    np.testing.assert_array_equal(
        build(path, vocab_size=512).encode("a b"), build(path).encode("a b")
    )


def test_building_reads_nothing():
    params = HuggingFaceTokenizer.params(file="/nowhere/tokenizer.json", vocab_size=7)
    assert params.build().vocab_size == 7


def test_the_name_changes_with_the_file_and_the_special_tokens(folder):
    path = folder / "gpt2" / "tokenizer.json"
    other = folder / "llama3" / "tokenizer.json"
    names = [build(path), build(path), build(other), build(path, start="</s>")]
    assert len({tokenizer.describe() for tokenizer in names}) == 3


def test_a_wrong_vocab_size_or_file_is_found_when_data_is_opened(folder, tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "empty.json").touch()
    (tmp_path / "list.json").write_text("[]")
    path = folder / "gpt2" / "tokenizer.json"

    def opening(path, size):
        tokenizer = HuggingFaceTokenizer.params(file=str(path), vocab_size=size).build()
        open_index(TextFiles.params(pattern=f"{tmp_path}/a.txt").build(), tokenizer)

    with pytest.raises(DataError, match=r"vocab_size=99, but .* has 400 ids: set vocab_size=400"):
        opening(path, 99)
    for bad in ("a.txt", "empty.json", "list.json"):
        with pytest.raises(DataError, match=f"{bad} is not a tokenizer.json: "):
            opening(tmp_path / bad, 400)
    with pytest.raises(DataError, match=r"gone\.json cannot be read: No such file"):
        opening(tmp_path / "gone.json", 400)


def test_a_damaged_file_is_one_error_or_a_tokenizer(folder, tmp_path):
    """Flipped, cut and removed bytes of two files, 300 of each."""
    generator = random.Random(0)
    path = tmp_path / "tokenizer.json"
    num_errors = 0
    for name in ("gpt2", "t5"):
        good = (folder / name / "tokenizer.json").read_bytes()
        for i in range(300):
            data, at = bytearray(good), generator.randrange(len(good))
            match i % 3:
                case 0:
                    data[at] = generator.randrange(256)
                case 1:
                    del data[at:]
                case 2:
                    del data[at : at + generator.randrange(1, 50)]
            path.write_bytes(data)
            tokenizer = HuggingFaceTokenizer.params(
                file=str(path), vocab_size=10**6, start="a", end="a", pad="a"
            ).build()
            try:
                tokenizer.decode(tokenizer.encode(TEXT[-80:]))
            except DataError:
                num_errors += 1
    assert num_errors > 300


def test_a_text_that_the_file_cannot_encode_is_an_error(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(library.Tokenizer(library.models.Unigram([("a", -1.0)])).to_str())
    tokenizer = build(path, end="a")
    assert tokenizer.encode("aa").tolist() == [0, 0]
    with pytest.raises(DataError, match=r"tokenizer\.json cannot encode a text: .*unk_id"):
        tokenizer.encode("ab")


def write_changed(folder, path, **settings):
    """Writes the tokenizer of GPT-2 with other settings."""
    values = json.loads((folder / "gpt2" / "tokenizer.json").read_text())
    path.write_text(json.dumps(values | settings))
    return build(path, end="</s>")


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def test_normalizers_that_grow_without_end_are_refused_and_others_are_not(folder, tmp_path):
    path, plain = tmp_path / "tokenizer.json", folder / "gpt2" / "tokenizer.json"
    growing = {"type": "Sequence", "normalizers": [replace("a", "a" * 1000)] * 5}
    tokenizer = write_changed(folder, path, normalizer=growing)
    assert tokenizer.encode("b" * 1000).tolist() == build(plain).encode("b" * 1000).tolist()
    with pytest.raises(DataError, match=r"its normalizer 3, Replace, may turn 1,000,000 char"):
        tokenizer.encode("a")
    tokenizer = write_changed(folder, path, normalizer=replace("", "b" * 10**6, "Regex"))
    with pytest.raises(DataError, match=r"tokenizer\.json cannot encode a text: its normalizer 1"):
        tokenizer.encode("a" * 10)
    named = [replace(" " * n, f"<|blank_{n}|>") for n in range(20, 1, -1)]
    settings = {"type": "Sequence", "normalizers": named}
    tokenizer = write_changed(folder, path, normalizer=settings)
    whole = library.Tokenizer.from_file(str(path)).encode(CODE, add_special_tokens=False)
    assert tokenizer.encode(CODE).tolist() == whole.ids


def test_decoders_that_grow_without_end_are_refused(folder, tmp_path):
    decoders = {"type": "Sequence", "decoders": [replace("a", "aa")] * 30}
    tokenizer = write_changed(folder, tmp_path / "tokenizer.json", decoder=decoders)
    with pytest.raises(DataError, match="its decoders may make a token 1,073,741,824 times"):
        tokenizer.encode("a")


def test_a_panic_of_the_library_is_an_error_of_one_line(folder, tmp_path):
    split = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated"}
    settings = {"pre_tokenizer": {**split, "invert": False}}
    tokenizer = write_changed(folder, tmp_path / "tokenizer.json", **settings)
    with pytest.raises(DataError, match=r"tokenizer\.json cannot encode a text: ") as caught:
        tokenizer.encode("a" * 40 + "x")
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_no_file_is_told(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    tokenizer = HuggingFaceTokenizer.params(
        file=str(tmp_path / "tokenizer.json"), vocab_size=9
    ).build()
    with pytest.raises(DataError, match="it is a named pipe, not a file"):
        tokenizer.encode("a")


def test_a_missing_package_is_named_with_what_installs_it(folder, monkeypatch):
    tokenizer = build(folder / "gpt2" / "tokenizer.json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[tokenizers\]'"):
        tokenizer.describe()


def open_input(kind, path, folder, **fields):
    """Returns an input of the text files of a folder, in their order."""
    tokenizer = fields.pop("tokenizer", build(path).p.copy())
    source = TextFiles.params(pattern=f"{folder}/*.txt")
    params = kind.params(source=source, tokenizer=tokenizer, batch_size=1, **fields)
    return params.set(shuffle=False, repeat=False).build()


def all_batches(input):
    return [input.batch(step) for step in range(input.num_batches())]


def test_rows_of_a_stream_are_slices_of_the_library_s_ids(kind, of_library, folder, tmp_path):
    text = CODE * 3  # several parts
    (tmp_path / "long.txt").write_text(text)
    path = folder / kind / "tokenizer.json"
    input = open_input(TextInput, path, tmp_path, length=50)
    batches = all_batches(input)
    whole = of_library.encode(text, add_special_tokens=False).ids
    targets = np.concatenate([b["targets"][b["segments"] > 0] for b in batches])
    tokens = np.concatenate([b["tokens"][b["segments"] > 0] for b in batches])
    np.testing.assert_array_equal(targets, [*whole, 1])
    np.testing.assert_array_equal(tokens, [2, *whole])
    assert input.offers() == {"vocab_size": of_library.get_vocab_size()}
    assert sum(int(batch["bytes"].sum()) for batch in batches) == len(text.encode())
    assert input.fingerprint()["tokenizer"] == build(path).describe()


def test_bins_and_buckets_hold_whole_documents(kind, of_library, folder, tmp_path):
    documents = ["return x", "it's größer", "def f1(x):", "x + 1", "<s> two </s>"]
    for i, document in enumerate(documents):
        (tmp_path / f"{i}.txt").write_text(document)
    path = folder / kind / "tokenizer.json"
    expected = sorted(
        [2, *of_library.encode(document, add_special_tokens=False).ids] for document in documents
    )
    bins = open_input(TextInput, path, tmp_path, length=24, packing="bins")
    assert bins.num_examples() < len(documents)
    rows = [row for batch in all_batches(bins) for row in documents_of(batch)]
    assert sorted(rows) == expected
    buckets = open_input(BucketedInput, path, tmp_path, boundaries=[12, 24])
    rows = [row for batch in all_batches(buckets) for row in documents_of(batch)]
    assert sorted(rows) == expected


def documents_of(batch):
    """Returns the tokens of each document in the rows of a batch, without padding."""
    rows = zip(batch["tokens"], batch["segments"], strict=True)
    return [
        tokens[segments == segment].tolist()
        for tokens, segments in rows
        for segment in range(1, segments.max() + 1)
    ]


def test_spans_that_are_removed_are_predicted(kind, folder, tmp_path):
    (tmp_path / "a.txt").write_text(CODE)
    path = folder / kind / "tokenizer.json"
    tokenizer = SentinelTokenizer.params(tokenizer=build(path).p.copy())
    input = open_input(SpanCorruption, path, tmp_path, tokenizer=tokenizer, source_length=40)
    first = input.tokenizer.sentinels[0]
    assert first == build(path).vocab_size
    whole = build(path).encode(CODE)
    batches = all_batches(input)
    kept = sum(
        int(((b[name] > 1) & (b[name] < first)).sum())
        for b in batches
        for name in ("source_tokens", "targets")
    )
    assert kept == len(whole)
    row = batches[0]
    source, target = (input.tokenizer.decode(row[n][0]) for n in ("source_tokens", "targets"))
    assert source.startswith("def f0") or source.startswith("def f 0")
    assert "<extra_id_0>" in source
    assert target.startswith("<extra_id_0>")


def test_a_pair_has_the_library_s_ids_on_both_sides(kind, of_library, folder, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"q": "def f1(x):", "a": "return x + 1"}\n')
    input = PairInput.params(
        source=JsonlPairs.params(pattern=f"{tmp_path}/a.jsonl", source_field="q", target_field="a"),
        tokenizer=build(folder / kind / "tokenizer.json").p.copy(),
        **{"batch_size": 1, "source_length": 32, "target_length": 32},
    ).build()
    batch = input.batch(0)
    question, answer = (
        of_library.encode(text, add_special_tokens=False).ids
        for text in ("def f1(x):", "return x + 1")
    )
    np.testing.assert_array_equal(batch["targets"][batch["segments"] > 0], [*answer, 1])
    source = batch["source_tokens"][batch["source_segments"] > 0]
    np.testing.assert_array_equal(source[: len(question)], question)
    prompt = input.prompt("def f1(x):")
    np.testing.assert_array_equal(prompt.source, source)
    assert prompt.tokens.tolist() == [2]


def test_sentinels_may_be_the_tokenizer_s_own(folder, tmp_path):
    (tmp_path / "a.txt").write_text(CODE)
    extended = library.Tokenizer.from_file(str(folder / "t5" / "tokenizer.json"))
    names = [f"<extra_id_{number}>" for number in (2, 1, 0)]  # as T5's: 0 is the last id
    extended.add_special_tokens(names)
    path = tmp_path / "tokenizer.json"
    extended.save(str(path))
    inner = build(path, end="</s>", start="<pad>", vocab_size=200)

    def with_sentinels(number):
        return OwnSentinelTokenizer.params(tokenizer=inner.p.copy(), num_sentinels=number)

    input = open_input(
        SpanCorruption, path, tmp_path, tokenizer=with_sentinels(3), source_length=20
    )
    tokenizer, batch = input.tokenizer, input.batch(0)
    size = extended.get_vocab_size()
    assert (tokenizer.vocab_size, tokenizer.start_id) == (200, 0)
    assert tokenizer.sentinels.tolist() == [size - 1, size - 2, size - 3]
    assert batch["targets"][0, 0] == size - 1
    assert batch["tokens"][0, 0] == 0
    assert tokenizer.decode(batch["targets"][0]).startswith("<extra_id_0>")
    text = "def <extra_id_0> return <extra_id_1>"
    assert tokenizer.encode_marked(text).tolist().count(size - 1) == 1
    assert tokenizer.decode(tokenizer.encode_marked(text)) == text.replace("> ", ">")
    assert tokenizer.describe() == f"{inner.describe()} and 3 sentinels of its own"
    with pytest.raises(DataError, match=r"no token <extra_id_3>: set num_sentinels=3\."):
        _ = with_sentinels(4).build().sentinels
    other = OwnSentinelTokenizer.params(
        tokenizer=build(folder / "gpt2" / "tokenizer.json").p.copy()
    )
    with pytest.raises(DataError, match=r"no token <extra_id_0>: take SentinelTokenizer\."):
        _ = other.build().sentinels
