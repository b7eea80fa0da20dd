"""Of the tokens 15 % are chosen, never part of a word; 80, 10, 10 % of them are read three ways."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.objectives.sentinels import SentinelTokenizer
from lingo.ops import random
from tasks.bert.masking import (
    SpanMasking,
    TokenMasking,
    Vocabulary,
    WholeWordMasking,
    find_words,
    read_vocabulary,
)

PAD, UNKNOWN, START, END, MASK = range(5)
SIZE, FIRST_CONTINUATION = 60, 40
VOCABULARY = Vocabulary(
    mask_id=MASK,
    continues_word=np.arange(SIZE) >= FIRST_CONTINUATION,
    is_never_masked=np.isin(np.arange(SIZE), [PAD, START, END]),
    random_ids=np.arange(5, SIZE, dtype=np.int32),
)
LENGTH, MOST, NUM_ROWS = 128, 20, 400
LIMIT = 18  # 15 % of 117 tokens
KINDS = [TokenMasking, WholeWordMasking, SpanMasking]


def make_row(number, text_length=117):
    """Returns [CLS] A [SEP] B [SEP] and padding, int32 [LENGTH]."""
    rng = np.random.default_rng(number)
    text = rng.integers(5, SIZE, text_length)
    text[[0, 60]] = 7, 8  # texts begin with a word
    row = [START, *text[:60], END, *text[60:], END]
    return np.array(row + [PAD] * (LENGTH - len(row)), np.int32)


def key_of(number):
    return random.fold(random.root_key(0), number)


def mask(kind, ids, key, most=MOST, **fields):
    masking = kind.params(**fields).build()
    return masking.mask(ids, key, vocabulary=VOCABULARY, max_predictions=most)


def masked_rows(kind, count=NUM_ROWS, **fields):
    """Yields (row, what masking makes of it)."""
    for number in range(count):
        ids = make_row(number)
        yield ids, mask(kind, ids, key_of(number), **fields)


def assert_share(found, total, share, deviations=4):
    """Compares a count with that of a binomial distribution."""
    bound = deviations * math.sqrt(total * share * (1 - share))
    assert abs(found - total * share) < bound, (found / total, share)


def words_slowly(ids):
    """Returns (first, after the last) of each word."""
    words, inside = [], False
    for at, token in enumerate(ids.tolist()):
        is_text = token not in (PAD, START, END)
        if is_text and inside and token >= FIRST_CONTINUATION:
            words[-1][1] = at + 1
        elif is_text:
            words.append([at, at + 1])
        inside = is_text
    return words


def test_words_begin_at_pieces_that_continue_none_and_end_with_their_text():
    for number in range(20):
        ids = make_row(number)
        assert find_words(ids, VOCABULARY).tolist() == words_slowly(ids)
    ids = np.array([START, 50, 51, 9, END, 52, END, PAD], np.int32)  # texts that begin in words
    assert find_words(ids, VOCABULARY).tolist() == [[1, 3], [3, 4], [5, 6]]
    assert find_words(np.array([9, 50], np.int32), VOCABULARY).tolist() == [[0, 2]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_gives_its_tokens_back(kind):
    for ids, row in masked_rows(kind, 50):
        num = int(row.weights.sum())
        assert 0 < num <= MOST
        assert row.weights.tolist() == [1.0] * num + [0.0] * (MOST - num)
        assert (np.diff(row.positions[:num]) > 0).all()
        assert not row.positions[num:].any()
        assert not row.ids[num:].any()
        np.testing.assert_array_equal(row.ids[:num], ids[row.positions[:num]])
        assert not VOCABULARY.is_never_masked[row.ids[:num]].any()
        restored = row.tokens.copy()
        restored[row.positions[:num]] = row.ids[:num]
        np.testing.assert_array_equal(restored, ids)
        dtypes = [array.dtype for array in row]
        assert dtypes == [np.int32, np.int32, np.int32, np.float32]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_key_gives_the_same_row_and_another_one_another(kind):
    ids = make_row(0)
    first, again, other = (mask(kind, ids, key_of(k)) for k in (1, 1, 2))
    assert all(map(np.array_equal, first, again))
    assert not np.array_equal(first.positions, other.positions)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rate", "most"), [(0.15, 76), (0.15, 5), (0.4, 30)])
def test_no_more_are_chosen_than_the_rate_and_the_cap_allow(kind, rate, most):
    limit = min(round(rate * 117), most)
    counts = [row.weights.sum() for _, row in masked_rows(kind, 60, rate=rate, most=most)]
    assert max(counts) == limit
    if kind is TokenMasking:
        assert min(counts) == limit
    else:
        assert np.mean(counts) > 0.95 * limit  # words that no longer fit are left out


def test_every_token_is_as_likely_as_any_other():
    counts = np.zeros(LENGTH)
    for _, row in masked_rows(TokenMasking):
        np.add.at(counts, row.positions[row.weights > 0], 1)
    is_text = ~VOCABULARY.is_never_masked[make_row(0)]
    assert not counts[~is_text].any()
    share = round(0.15 * 117) / 117
    for found in counts[is_text]:
        assert_share(found, NUM_ROWS, share, deviations=4.5)


@pytest.mark.parametrize("kind", KINDS)
def test_most_are_masked_some_are_random_some_are_kept(kind):
    read = Counter()
    for _, row in masked_rows(kind):
        num = int(row.weights.sum())
        tokens = row.tokens[row.positions[:num]]
        read["masked"] += int((tokens == MASK).sum())
        read["kept"] += int((tokens == row.ids[:num]).sum())
        read["all"] += num
    same = 0.1 / len(VOCABULARY.random_ids)  # a random token is the one that was there
    # the tokens of a span are alike: fewer independent draws, by the tokens of a span
    deviations = 4 * (math.sqrt(10) if kind is SpanMasking else 1)
    assert_share(read["masked"], read["all"], 0.8, deviations)
    assert_share(read["kept"], read["all"], 0.1 + same, deviations)


def test_random_tokens_are_uniform_over_the_vocabulary_without_special_tokens():
    counts = Counter()
    for _, row in masked_rows(TokenMasking, mask_rate=0.0, random_rate=1.0):
        counts.update(row.tokens[row.positions[row.weights > 0]].tolist())
    assert sorted(counts) == VOCABULARY.random_ids.tolist()
    total = counts.total()
    for found in counts.values():
        assert_share(found, total, 1 / len(VOCABULARY.random_ids), deviations=4.5)


@pytest.mark.parametrize("kind", [WholeWordMasking, SpanMasking])
def test_a_word_is_chosen_whole_or_not_at_all(kind):
    num_long = 0
    for ids, row in masked_rows(kind):
        chosen = set(row.positions[row.weights > 0].tolist())
        for begin, end in words_slowly(ids):
            count = len(chosen & set(range(begin, end)))
            assert count in (0, end - begin)
            num_long += count > 1
    assert num_long > NUM_ROWS


def test_pieces_of_a_whole_word_have_their_own_fates():
    fates = Counter()
    for ids, row in masked_rows(WholeWordMasking, mask_rate=0.5, random_rate=0.0):
        chosen = set(row.positions[row.weights > 0].tolist())
        for begin, end in words_slowly(ids):
            if begin in chosen and end - begin == 2:
                fates[tuple((row.tokens[begin:end] == MASK).tolist())] += 1
    total = fates.total()
    for fate in itertools.product([False, True], repeat=2):
        assert_share(fates[fate], total, 0.25)


def spans_of(kind, count, **fields):
    """Yields (row of one-piece words, its spans as (begin, end), what masking makes of it)."""
    for number in range(count):
        ids = np.where(make_row(number) >= FIRST_CONTINUATION, 9, make_row(number)).astype(np.int32)
        masking = kind.params(**fields).build()
        words = find_words(ids, VOCABULARY)
        choice = masking.choose(words, LIMIT, random.fold(key_of(number), 0))
        spans = []
        for group in np.unique(choice.groups):
            positions = np.sort(choice.positions[choice.groups == group])
            assert positions.tolist() == [*range(positions[0], positions[-1] + 1)]
            spans.append((int(positions[0]), int(positions[-1]) + 1))
        yield ids, spans, mask(kind, ids, key_of(number), **fields)


def test_lengths_of_spans_have_the_published_mean_and_shares():
    """Joshi et al. 2020, sec. 3.1: p = 0.2, at most 10, mean 3.8."""
    count = 100_000
    lengths = SpanMasking.params().build().span_lengths(count, key_of(0))
    assert lengths.mean() == pytest.approx(3.8, abs=0.03)
    shares = 0.2 * 0.8 ** np.arange(10)
    for length, share in enumerate(shares / shares.sum(), 1):
        assert_share((lengths == length).sum(), count, share)


def test_a_span_is_a_run_of_one_text_with_one_fate():
    sizes = []
    for ids, spans, row in spans_of(SpanMasking, 100, mask_rate=0.5, random_rate=0.0):
        for begin, end in spans:
            assert END not in ids[begin:end]
            assert len(set((row.tokens[begin:end] == MASK).tolist())) == 1
            sizes.append(end - begin)
    assert 2.5 < np.mean(sizes) < 3.8  # other spans, ends of texts and the limit cut some
    assert max(sizes) == 10


def test_spans_of_one_word_begin_anywhere():
    counts = np.zeros(LENGTH)
    for _, spans, _ in spans_of(SpanMasking, NUM_ROWS, max_words=1):
        for begin, _ in spans:
            counts[begin] += 1
    is_text = ~VOCABULARY.is_never_masked[make_row(0)]
    for found in counts[is_text]:
        assert_share(found, NUM_ROWS, LIMIT / 117, deviations=4.5)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_little_or_no_text(kind):
    nothing = mask(kind, np.array([START, END, END, PAD], np.int32), key_of(0), most=2)
    assert nothing.tokens.tolist() == [START, END, END, PAD]
    assert not nothing.weights.any()
    one = mask(kind, np.array([START, 9, END, PAD], np.int32), key_of(0), most=2)
    assert (one.positions.tolist(), one.ids.tolist()) == ([1, 0], [9, 0])
    assert one.weights.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("kind", [WholeWordMasking, SpanMasking])
def test_a_row_of_long_words_predicts_the_shortest_whole(kind):
    """15 % of 10 tokens is one, and the words have 7 and 3 pieces."""
    ids = np.array([START, 9, 50, 51, 52, 50, 51, 52, 10, 53, 54, END, PAD], np.int32)
    row = mask(kind, ids, key_of(0), most=4)
    assert row.positions.tolist() == [8, 9, 10, 0]
    assert row.weights.tolist() == [1, 1, 1, 0]
    cut = mask(kind, ids, key_of(0), most=2)  # there is no room for more
    assert (cut.positions.tolist(), cut.weights.tolist()) == ([8, 9], [1, 1])


def test_a_geometric_of_one_gives_spans_of_one_word():
    lengths = SpanMasking.params(geometric=1.0).build().span_lengths(100, key_of(0))
    assert set(lengths.tolist()) == {1}


def test_wrong_shares_are_refused():
    for fields, reason in (
        ({"mask_rate": 0.8, "random_rate": 0.3}, "their sum is at most 1"),
        ({"mask_rate": -0.1}, "neither is below 0"),
        ({"rate": 1.5}, r"rate=1\.5 is not in"),
        ({"geometric": 0.0}, "geometric=0.0 is not above 0 and at most 1"),
        ({"geometric": 1.1}, "geometric=1.1 is not above 0 and at most 1"),
        ({"max_words": 0}, "max_words=0 is not positive"),
    ):
        with pytest.raises(ParamError, match=reason):
            SpanMasking.params(**fields).build()


def test_a_tokenizer_without_mask_is_refused():
    with pytest.raises(DataError, match=r"bytes and 100 sentinels has no token \[MASK\]"):
        read_vocabulary(SentinelTokenizer.params().build())
