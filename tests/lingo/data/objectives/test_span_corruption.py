"""Span corruption of any text: full rows, a function of (seed, row), and nothing is lost."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.objectives.sentinels import SentinelTokenizer
from lingo.data.objectives.span_corruption import SpanCorruption
from lingo.data.source import TextFiles
from lingo.data.text_input import TextInput
from lingo.data.tokenizer import ByteTokenizer
from tests.lingo.data.documents import assert_equal, random_letters

FIRST = 259  # of the sentinels


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    return random_letters(tmp_path, 100, 3, 250, 40)


def spans(data: pathlib.Path, **fields: Any) -> SpanCorruption:
    values = {"source": TextFiles.params(pattern=f"{data}/*.txt"), "batch_size": 2}
    return SpanCorruption.params(**values | {"source_length": 32} | fields).build()


def restored(source: list[int], target: list[int]) -> list[int]:
    parts: dict[int, list[int]] = {}
    for token in target[:-1]:
        parts.setdefault(token, []) if token >= FIRST else parts[list(parts)[-1]].append(token)
    return [t for token in source[:-1] for t in parts.get(token, [token])]


def test_the_default_is_t5s() -> None:
    input = SpanCorruption.params(batch_size=1).build()
    assert (input.text_length, input.lengths[:2]) == (568, (512, 114))
    assert input.offers() == {"vocab_size": 359}


def test_rows_are_full_but_the_last(data: pathlib.Path) -> None:
    input = spans(data, shuffle=False)
    size = input.num_examples()
    arrays = input.examples(np.arange(size))
    assert arrays["source_segments"][:-1].all()
    assert arrays["segments"][:-1].all()
    assert not arrays["segments"][-1].all()


@pytest.mark.parametrize("shuffle", [True, False])
def test_source_and_target_give_every_row_of_the_stream_back(
    data: pathlib.Path, shuffle: bool
) -> None:
    input = spans(data, shuffle=shuffle, seed=5)
    plain = TextInput.params(
        source=input.p.source.copy(),
        batch_size=2,
        length=input.text_length,
        seed=5,
        shuffle=shuffle,
    ).build()
    for number in range(2 * input.num_examples()):
        row, text = input.row(number), plain.examples(np.array([number]))
        wanted = text["targets"][0][text["segments"][0] > 0].tolist()
        (found,) = row.pairs
        assert restored(found.source.tolist(), found.target.tolist()) == wanted
        assert row.num_bytes == ((found.target >= 3) & (found.target < FIRST)).sum()
    assert input.origins(np.arange(9)) == plain.origins(np.arange(9))


def test_a_row_is_corrupted_anew_in_every_epoch_and_always_alike(data: pathlib.Path) -> None:
    input, size = spans(data, shuffle=False), spans(data).num_examples()
    first, second = input.row(0).pairs[0], input.row(size).pairs[0]
    assert restored(*(s.tolist() for s in first)) == restored(*(s.tolist() for s in second))
    assert first.target.tolist() != second.target.tolist()
    again = spans(data, shuffle=False).row(size).pairs[0]
    np.testing.assert_array_equal(again.source, second.source)
    other = spans(data, shuffle=False, seed=1).row(0).pairs[0]
    assert other.target.tolist() != first.target.tolist()


@pytest.mark.parametrize("form", ["encoder_decoder", "decoder"])
def test_a_fresh_start_gives_the_same_batch(data: pathlib.Path, form: str) -> None:
    input = spans(data, form=form)
    batch = input.batch(4)
    assert {n: (a.shape, str(a.dtype)) for n, a in batch.items()} == input.specs()
    assert_equal(spans(data, form=form).batch(4), batch)


def test_a_last_row_of_one_token_is_padding(data: pathlib.Path) -> None:
    tokens = 100 + 3 + 250 + 40 + 4  # an end after each
    input = next(
        i for n in range(8, 80) if tokens % (i := spans(data, source_length=n)).text_length == 1
    )
    last = [n for n in range(input.num_examples()) if not input.row(n).pairs]
    assert len(last) == 1
    assert not input.examples(np.array(last))["segments"].any()


def test_wrong_fields_are_refused(data: pathlib.Path) -> None:
    for field, value, said in (
        ("source_length", 2, "source_length=2 is less than 3"),
        ("noise_density", 1.0, "noise_density=1.0 is not between 0 and 1"),
        ("mean_span_length", 0.5, "mean_span_length=0.5 is less than a token"),
        ("tokenizer", ByteTokenizer, r"SentinelTokenizer\(tokenizer=ByteTokenizer\(\.\.\.\)\)"),
        ("tokenizer", SentinelTokenizer.params(num_sentinels=1), "set tokenizer.num_sentinels=2"),
    ):
        with pytest.raises(ParamError, match=said):
            spans(data, **{field: value})
