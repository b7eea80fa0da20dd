"""Tokens are the package's for the whole text, and those of parts are slices of them."""

import numpy as np
import pytest

from lingo.data import part_tokenizer
from lingo.data.sentence_piece import SentencePiece
from tests.lingo.data.mixed_text import SETTINGS, mixed_text, train

spm = pytest.importorskip("sentencepiece", reason="needs pip install 'lingo-tf[text]'")

SAMPLE = mixed_text(0, 60_000)
TEXTS = [mixed_text(seed, 20_000).encode() for seed in (1, 2, 3)]
LOSSLESS = ("unigram, blanks kept", "bpe, as Llama")
BLANK = b"   x \n\n  y   z\t\n   "


@pytest.fixture(scope="module", params=SETTINGS)
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "a.model"
    path.write_bytes(train(SETTINGS[request.param], SAMPLE))
    processor = spm.SentencePieceProcessor(model_file=str(path))
    size = processor.vocab_size()
    return request.param, SentencePiece.params(model=str(path), vocab_size=size).build(), processor


def test_tokens_are_those_of_the_package(model):
    name, tokenizer, processor = model
    for text in (*TEXTS, BLANK, b"", b" ", b"\n", TEXTS[0][:4000].replace(b" ", b"")):
        ids = tokenizer.encode(text)
        assert ids.tolist() == processor.encode(text)
        assert tokenizer.decode(ids) == processor.decode(processor.encode(text))
        if name in LOSSLESS:
            assert tokenizer.decode(ids) == text.decode(errors="replace").replace("\u2581", " ")


def test_parts_have_the_tokens_of_the_whole(model, monkeypatch):
    name, tokenizer, processor = model
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


def test_a_long_document_is_encoded_in_segments(model, monkeypatch):
    name, tokenizer, processor = model
    if name in ("words", "characters"):
        pytest.skip("unknown words next to each other are one token in a segment")
    monkeypatch.setattr(SentencePiece, "segment_bytes", 5000)
    for text in TEXTS:
        assert tokenizer.encode(text).tolist() == processor.encode(text)
