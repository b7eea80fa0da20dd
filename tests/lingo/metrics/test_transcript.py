"""Word errors: published counts, all alignments by brute force, and sums over batches."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from lingo.metrics import Accumulator, read_state, text_scores
from lingo.metrics.transcript import (
    Edits,
    edits,
    normalize_transcript,
    word_error_results,
    word_errors,
)

REFERENCE, HYPOTHESIS = "the cat sat on the mat", "the cat sat mat the hat up"


def test_published_errors() -> None:
    assert edits(REFERENCE.split(), HYPOTHESIS.split()) == Edits(2, 0, 1)
    assert word_error_results(word_errors([REFERENCE], [[HYPOTHESIS]])) == {
        "wer": 50.0,
        "oracle_wer": 50.0,
        "substitutions": pytest.approx(100 / 3),
        "deletions": 0.0,
        "insertions": pytest.approx(100 / 6),
        "sentence_accuracy": 0.0,
    }


def alignments(a: str, b: str) -> set[Edits]:
    """Returns the edits of every alignment."""

    @functools.cache
    def rest(i: int, j: int) -> frozenset[Edits]:
        if (i, j) == (len(a), len(b)):
            return frozenset({Edits(0, 0, 0)})
        found = set()
        if i < len(a) and j < len(b):
            found |= {e._replace(substitutions=e[0] + (a[i] != b[j])) for e in rest(i + 1, j + 1)}
        if i < len(a):
            found |= {e._replace(deletions=e[1] + 1) for e in rest(i + 1, j)}
        if j < len(b):
            found |= {e._replace(insertions=e[2] + 1) for e in rest(i, j + 1)}
        return frozenset(found)

    return set(rest(0, 0))


def test_edits_are_the_fewest_of_all_alignments_with_most_substitutions() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, b = ("".join(rng.choice(list("xyz"), rng.integers(0, 6))) for _ in range(2))
        every = alignments(a, b)
        fewest = min(one.total for one in every)
        expected = max(one for one in every if one.total == fewest)
        assert edits(a, b) == expected
        assert edits(b, a) == (expected[0], expected[2], expected[1])


def test_states_of_parts_add_up_to_that_of_the_whole() -> None:
    references = ["a b c", "", "d", "a b"]
    hypotheses = [["a c", "a b c"], ["x"], ["d"], []]
    whole, sums = word_errors(references, hypotheses), Accumulator()
    for part in (slice(0, 1), slice(1, 4)):
        sums.add({"text": word_errors(references[part], hypotheses[part])})
    assert read_state("text", sums.states["text"]) == read_state("text", whole)
    assert read_state("text", whole) == {
        "text/wer": pytest.approx(100 * 4 / 6),
        "text/oracle_wer": 50.0,
        "text/substitutions": 0.0,
        "text/deletions": 50.0,
        "text/insertions": pytest.approx(100 / 6),
        "text/sentence_accuracy": 0.25,
    }


def test_rates_need_words_and_results_need_utterances() -> None:
    assert word_error_results(word_errors([], [])) == {}
    assert word_error_results(word_errors([""], [["a"]])) == {"sentence_accuracy": 0.0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mister Quilter's  well-known, GOSPEL.", "mister quilter's well-known gospel"),
        ("<unk> yes [cough] no", "yes no"),
        ("a_b?c", "a b c"),
        ("Crème brûlée!", "crème brûlée"),
        ("", ""),
    ],
)
def test_normalized_transcripts(text: str, expected: str) -> None:
    assert normalize_transcript(text) == expected


def test_tags_may_stay_as_words() -> None:
    assert normalize_transcript("<unk> a", drops_tags=False) == "unk a"


def test_measures_of_answers_are_sums_over_all_texts() -> None:
    texts, references = ["The cat", "a"], ["the cat sat.", "a"]
    scores = text_scores(texts, references, ["wer", "wer_normalized", "cer"])
    assert scores["wer"] == 100 * 2 / 4
    assert scores["wer_normalized"] == 100 * 1 / 4
    assert scores["cer"] == pytest.approx(100 * 6 / 13)
    assert np.isnan(text_scores(["a"], [""], ["wer"])["wer"])
