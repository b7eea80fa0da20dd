"""Bits a byte of a compressor, of the very bytes that a model is evaluated on."""

import os

import pytest

from lingo.data.document_input import TextInput
from lingo.data.record_source import TextFiles
from tools.compressed import bits_per_byte, documents, evaluation_text, main

TEXTS = ["a first one", "zwölf Boxkämpfer", "", "the last"]


@pytest.fixture
def input(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for i, text in enumerate(TEXTS):
        (tmp_path / f"{i}.txt").write_text(text, encoding="utf-8")
    source = TextFiles.params(pattern=f"{tmp_path}/*.txt")
    return TextInput.params(source=source, batch_size=2, length=7, repeat=False).build()


def test_what_is_evaluated_is_every_byte_once(input):
    whole = "".join(TEXTS).encode()
    assert sorted(evaluation_text(input)) == sorted(whole)
    assert sum(b["bytes"].sum() for b in map(input.batch, range(input.num_batches()))) == len(whole)
    assert sorted(documents(input)) == sorted(text.encode() for text in TEXTS if text)


def test_noise_takes_its_own_size_and_repetition_next_to_nothing():
    noise = os.urandom(100_000)
    assert bits_per_byte([noise]) == pytest.approx(8, rel=0.01)
    assert bits_per_byte([noise + noise]) == pytest.approx(4, rel=0.01)
    assert bits_per_byte([noise, noise]) == bits_per_byte([noise])


def test_no_experiment_is_a_usage_line(capsys):
    assert main([]) == 2
    assert "usage: python -m tools.compressed" in capsys.readouterr().err
