"""A part of a text is predicted from the rest: what is behind a random place, or spans of it."""

import collections
import itertools

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.document_input import TextInput
from lingo.data.objectives.denoising import (
    Noise,
    PrefixText,
    SpanCorruption,
    corrupt,
    counts,
    noise_mask,
    text_length,
)
from lingo.data.objectives.sentinels import SentinelTokenizer
from lingo.data.record_source import TextFiles
from lingo.data.tokenizer import ByteTokenizer
from lingo.ops import random
from tests.lingo.data.documents import assert_starts_anywhere, random_letters, specs_of

LENGTH = 10


@pytest.fixture
def data(tmp_path):
    return random_letters(tmp_path, 57, 3, 120)


def prefixes(data, **fields):
    values = {"source": TextFiles.params(pattern=f"{data}/*.txt"), "batch_size": 2}
    return PrefixText.params(**values | {"length": LENGTH} | fields).build()


def texts(data, numbers):
    source = TextFiles.params(pattern=f"{data}/*.txt")
    plain = TextInput.params(source=source, batch_size=2, length=LENGTH).build().examples(numbers)
    return [t[s > 0].tolist() for t, s in zip(plain["targets"], plain["segments"], strict=True)]


def test_the_two_parts_are_the_text(data):
    input = prefixes(data)
    numbers = np.arange(2 * input.num_examples())
    for number, wanted in zip(numbers.tolist(), texts(data, numbers), strict=True):
        row = input.row(number)
        ((source, target),) = row.pairs
        assert [*source[:-1], *target] == wanted
        assert source[-1] == input.tokenizer.end_id
        assert len(source) > 1
        assert len(target) > 0
        assert row.num_bytes == (target >= 3).sum()


def test_a_decoder_alone_reads_the_text_and_is_scored_behind_the_split(data):
    input = prefixes(data, form="decoder")
    numbers = np.arange(input.num_examples())
    batch = input.examples(numbers)
    for i, wanted in enumerate(texts(data, numbers)):
        here = batch["segments"][i] > 0
        assert batch["targets"][i][here].tolist() == wanted
        assert batch["tokens"][i][here].tolist() == [input.tokenizer.start_id, *wanted[:-1]]
        given = int(batch["prefix"][i].sum()) - 1  # the start is shown, too
        weights = [0.0] * given + [1.0] * (len(wanted) - given)
        assert batch["target_weights"][i][here].tolist() == weights
        assert batch["prefix"][i].tolist() == [j <= given for j in range(LENGTH)]


def test_every_place_is_equally_likely(data):
    input = prefixes(data, shuffle=False)
    numbers = (n * input.num_examples() for n in range(900))
    found = collections.Counter(len(input.row(n).pairs[0].source) - 1 for n in numbers)
    assert sorted(found) == list(range(1, LENGTH))
    assert max(abs(n - 100) for n in found.values()) < 50


def test_a_text_that_cannot_be_split_is_refused(data):
    with pytest.raises(ParamError, match="length=1 is too short to split a text"):
        prefixes(data, length=1)


FIRST = 259  # of the sentinels


@pytest.fixture
def letters(tmp_path):
    return random_letters(tmp_path, 100, 3, 250, 40)


def spans(letters, **fields):
    values = {"source": TextFiles.params(pattern=f"{letters}/*.txt"), "batch_size": 2}
    return SpanCorruption.params(**values | {"source_length": 32} | fields).build()


def restored(source, target):
    parts = {}
    for token in target[:-1]:
        parts.setdefault(token, []) if token >= FIRST else parts[list(parts)[-1]].append(token)
    return [t for token in source[:-1] for t in parts.get(token, [token])]


def test_the_default_is_t5s():
    input = SpanCorruption.params(batch_size=1).build()
    assert (input.text_length, input.lengths[:2]) == (568, (512, 114))
    assert input.offers() == {"vocab_size": 359}


def test_rows_are_full_but_the_last(letters):
    input = spans(letters, shuffle=False)
    size = input.num_examples()
    arrays = input.examples(np.arange(size))
    assert arrays["source_segments"][:-1].all()
    assert arrays["segments"][:-1].all()
    assert not arrays["segments"][-1].all()


@pytest.mark.parametrize("shuffle", [True, False])
def test_source_and_target_give_every_row_of_the_stream_back(letters, shuffle):
    input = spans(letters, shuffle=shuffle, seed=5)
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


def test_a_row_is_corrupted_anew_in_every_epoch_and_always_alike(letters):
    input, size = spans(letters, shuffle=False), spans(letters).num_examples()
    first, second = input.row(0).pairs[0], input.row(size).pairs[0]
    assert restored(*(s.tolist() for s in first)) == restored(*(s.tolist() for s in second))
    assert first.target.tolist() != second.target.tolist()
    again = spans(letters, shuffle=False).row(size).pairs[0]
    np.testing.assert_array_equal(again.source, second.source)
    other = spans(letters, shuffle=False, seed=1).row(0).pairs[0]
    assert other.target.tolist() != first.target.tolist()


@pytest.mark.parametrize("form", ["encoder_decoder", "decoder"])
def test_a_fresh_start_gives_the_same_batch(letters, form):
    input = spans(letters, form=form)
    assert specs_of(input.batch(4)) == input.specs()
    assert_starts_anywhere(lambda: spans(letters, form=form), range(4, 5))


def test_a_last_row_of_one_token_is_padding(letters):
    tokens = 100 + 3 + 250 + 40 + 4  # an end after each
    input = next(
        i for n in range(8, 80) if tokens % (i := spans(letters, source_length=n)).text_length == 1
    )
    last = [n for n in range(input.num_examples()) if not input.row(n).pairs]
    assert len(last) == 1
    assert not input.examples(np.array(last))["segments"].any()


def test_wrong_fields_are_refused(letters):
    for field, value, said in (
        ("source_length", 2, "source_length=2 is less than 3"),
        ("noise_density", 1.0, "noise_density=1.0 is not between 0 and 1"),
        ("mean_span_length", 0.5, "mean_span_length=0.5 is less than 1 token"),
        ("tokenizer", ByteTokenizer, r"SentinelTokenizer\(tokenizer=ByteTokenizer\(\.\.\.\)\)"),
        ("tokenizer", SentinelTokenizer.params(num_sentinels=1), "set tokenizer.num_sentinels=2"),
    ):
        with pytest.raises(ParamError, match=said):
            spans(letters, **{field: value})


# ---- spans -------------------------------------------------------------------------------------

T5 = Noise(density=0.15, mean_span_length=3.0)
SENTINELS = np.arange(1000, 1100, dtype=np.int32)
END = 1


def key(number=0):
    return random.fold(random.root_key(3), number)


def runs(mask):
    """Returns (value, length) of the runs of a mask."""
    return [(bool(value), len(list(run))) for value, run in itertools.groupby(mask.tolist())]


def test_lengths_are_those_of_t5():
    assert text_length(512, T5) == 568
    assert counts(568, T5) == (85, 28, 512, 114)


@pytest.mark.parametrize("noise", [T5, Noise(0.5, 1.0), Noise(0.9, 1.0), Noise(0.3, 12.0)])
@pytest.mark.parametrize("source_length", [3, 4, 17, 64, 100])
def test_the_text_is_the_longest_whose_source_fits(noise, source_length):
    length = text_length(source_length, noise)
    assert counts(length, noise).source <= source_length < counts(length + 1, noise).source


@pytest.mark.parametrize("noise", [T5, Noise(0.5, 1.0), Noise(0.9, 1.0), Noise(0.3, 12.0)])
@pytest.mark.parametrize("num_tokens", [2, 3, 10, 65])
def test_a_mask_has_as_much_noise_and_as_many_spans_as_counts_say(noise, num_tokens):
    wanted = counts(num_tokens, noise)
    for number in range(20):
        mask = noise_mask(num_tokens, noise, key(number))
        found = runs(mask)
        assert len(mask) == num_tokens
        assert mask.sum() == wanted.noise
        assert [value for value, _ in found] == [False, True] * wanted.spans


def test_all_masks_are_equally_likely():
    noise = Noise(density=0.5, mean_span_length=2.0)  # of 8: 4 in 2 spans, so 3 x 3 masks
    found = collections.Counter(tuple(noise_mask(8, noise, key(n)).tolist()) for n in range(4500))
    assert len(found) == 9
    assert max(abs(n - 500) for n in found.values()) < 5 * np.sqrt(500)


def slow(ids, mask):
    """Returns source and target, token by token."""
    source, target, sentinels = [], [], iter(SENTINELS.tolist())
    before = False
    for token, noisy in zip(ids, mask, strict=True):
        if noisy and not before:
            sentinel = next(sentinels)
            source.append(sentinel)
            target.append(sentinel)
        (target if noisy else source).append(token)
        before = noisy
    return [*source, END], [*target, END]


@pytest.mark.parametrize("num_tokens", [2, 7, 568])
def test_source_and_target_are_those_of_a_loop(num_tokens):
    ids = np.random.default_rng(0).integers(3, 259, num_tokens).astype(np.int32)
    for number in range(10):
        mask = noise_mask(num_tokens, T5, key(number))
        found = corrupt(ids, mask, SENTINELS, end_id=END)
        source, target = found.source.tolist(), found.target.tolist()
        assert (source, target) == slow(ids.tolist(), mask.tolist())
        assert (len(source), len(target)) == counts(num_tokens, T5)[2:]
