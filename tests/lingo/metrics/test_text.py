"""Scores of texts are sacrebleu's, and those of slow Python."""

from __future__ import annotations

import collections
import math
import sys

import numpy as np
import pytest
import sacrebleu

from lingo.config.base.errors import MissingPackage
from lingo.metrics.text import signatures, text_scores

TEXTS = ["the cat sat on the mat", "a dog", "no match here", "the end of the end"]
REFERENCES = ["the cat sat on a mat", "a big dog ran", "words that differ", "the end of the end"]


def ngrams(items, n):
    return collections.Counter(tuple(items[i : i + n]) for i in range(len(items) - n + 1))


def slow_bleu(texts, references):
    """BLEU by its definition (Papineni et al. 2002, sec. 2.3), of words between spaces."""
    pairs = [(t.split(), r.split()) for t, r in zip(texts, references, strict=True)]
    total, zeros = 0.0, 0
    for n in (1, 2, 3, 4):
        counts = [(ngrams(text, n), ngrams(reference, n)) for text, reference in pairs]
        matches = sum((own & other).total() for own, other in counts)
        if not matches:
            zeros += 1
            matches = 2.0**-zeros  # smoothing "exp"
        total += math.log(matches / sum(own.total() for own, _ in counts)) / 4
    length, wanted = (sum(map(len, side)) for side in zip(*pairs, strict=True))
    return 100 * math.exp(min(0, 1 - wanted / length) + total)


def slow_chrf(texts, references):
    """chrF2 of n-grams of 1 to 6 characters, without spaces (Popovic 2015)."""
    pairs = [
        [side.replace(" ", "") for side in pair] for pair in zip(texts, references, strict=True)
    ]
    precisions, recalls = [], []
    for n in range(1, 7):
        counts = [(ngrams(text, n), ngrams(reference, n)) for text, reference in pairs]
        matches = sum((own & other).total() for own, other in counts)
        precisions.append(matches / sum(own.total() for own, _ in counts))
        recalls.append(matches / sum(other.total() for _, other in counts))
    precision, recall = np.mean(precisions), np.mean(recalls)
    return 100 * 5 * precision * recall / (4 * precision + recall)


def test_a_bleu_by_hand():
    scores = text_scores(TEXTS[:1], REFERENCES[:1], ["bleu"])
    assert scores == {"bleu": pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4))}


@pytest.mark.parametrize("size", [1, 3, 4])
def test_scores_are_those_of_slow_python_and_exactly_those_of_sacrebleu(size):
    texts, references = TEXTS[:size], REFERENCES[:size]
    scores = text_scores(texts, references, ["bleu", "chrf", "exact_match"])
    assert scores["bleu"] == pytest.approx(slow_bleu(texts, references), rel=1e-12)
    assert scores["chrf"] == pytest.approx(slow_chrf(texts, references), rel=1e-12)
    assert scores["bleu"] == sacrebleu.corpus_bleu(texts, [references]).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(texts, [references]).score
    assert scores["exact_match"] == (0.25 if size == 4 else 0)


def test_uncased_bleu_is_that_of_mlperf():
    texts, references = [text.upper() for text in TEXTS], REFERENCES
    scores = text_scores(texts, references, ["bleu_uncased", "bleu"])
    expected = sacrebleu.corpus_bleu(texts, [references], lowercase=True, tokenize="intl").score
    assert scores["bleu_uncased"] == expected > scores["bleu"]
    (signature,) = signatures(["bleu_uncased"])
    assert "|case:lc|" in signature
    assert "|tok:intl|" in signature


def test_a_long_corpus_with_punctuation_and_lines_is_scored_as_sacrebleu_does():
    draw = np.random.default_rng(0)
    words = ["the", "a.b", "(x,", "y)", "größer", "\n", "3.5", ".", "don't"]
    texts, references = (
        [" ".join(draw.choice(words, 9)) + " ." for _ in range(150)] for _ in range(2)
    )
    bleu = text_scores(texts, references, ["bleu"])["bleu"]
    assert bleu == sacrebleu.corpus_bleu(texts, [references], force=True).score


def test_a_perfect_corpus_has_all_points_and_an_empty_one_has_no_scores():
    measures = ["bleu", "chrf", "exact_match"]
    perfect = text_scores(REFERENCES, REFERENCES, measures)
    assert perfect == {
        "bleu": pytest.approx(100),
        "chrf": pytest.approx(100),
        "exact_match": 1.0,
    }
    assert text_scores([], [], measures) == {}


def test_signatures_name_settings_and_version():
    bleu, chrf = signatures(["bleu", "exact_match", "chrf"])
    assert bleu == (
        f"BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )
    assert chrf.startswith("CHRF|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_without_the_package_it_is_named_and_exact_match_works(monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "sacrebleu":
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[text\]'"):
        text_scores(["a"], ["a"], ["bleu"])
    assert text_scores(["a"], ["a"], ["exact_match"]) == {"exact_match": 1.0}
