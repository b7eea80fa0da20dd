"""ROUGE equals that of the package `rouge-score`, and scores of answers are SQuAD's."""

from __future__ import annotations

import pytest

from lingo.metrics.text import answer_f1, answer_match, rouge_l, rouge_n, text_scores

# Text, reference, and ROUGE-1, ROUGE-2, ROUGE-L by rouge-score 0.1.2 (tools/oracles/rouge.py).
PAIRS = [
    ("the cat sat on the mat", "the cat sat on a mat", (0.833333333, 0.6, 0.833333333)),
    (
        "Returns the sum of all elements.",
        "Return a sum of the elements, in float32.",
        (0.571428571, 0.166666667, 0.428571429),
    ),
    ("a b c d e f g", "g f e d c b a", (1.0, 0.0, 0.142857143)),
    ("the the the the", "the cat", (0.333333333, 0.0, 0.333333333)),
    ("", "not empty", (0.0, 0.0, 0)),
    ("Größe über alles", "grosse uber alles", (0.285714286, 0.0, 0.285714286)),
    ("x_1 = f(x_0), don't", "x 1 f x 0 don t", (1.0, 1.0, 1.0)),
    ("日本語", "日本語", (0.0, 0.0, 0)),
    ("one two three four five six", "two four six one three five", (1.0, 0.0, 0.5)),
]


@pytest.mark.parametrize(("text", "reference", "values"), PAIRS)
def test_rouge_is_that_of_the_package(text, reference, values) -> None:
    found = rouge_n(text, reference, n=1), rouge_n(text, reference, n=2), rouge_l(text, reference)
    assert found == pytest.approx(values, abs=1e-9)


def test_scores_of_a_corpus_are_means_over_texts() -> None:
    texts, references, values = zip(*PAIRS, strict=True)
    found = text_scores(texts, references, ["rouge1", "rouge2", "rougeL"])
    means = [100 * sum(column) / len(PAIRS) for column in zip(*values, strict=True)]
    assert [*found.values()] == pytest.approx(means)


@pytest.mark.parametrize(
    ("text", "reference", "value"),
    [
        ("The Japanese Yen", "a japanese yen!", 1.0),
        ("yen", "Japanese yen", 2 * 1 * 0.5 / 1.5),
        ("yen yen dollar", "yen euro", 2 * (1 / 3) * 0.5 / (1 / 3 + 0.5)),
        ("theory", "the", 0.0),
        ("", "", 0.0),
        ("東京 station", "東京", 2 * 0.5 * 1 / 1.5),
    ],
)
def test_the_f1_of_an_answer_is_that_of_its_words(text, reference, value) -> None:
    assert answer_f1(text, reference) == pytest.approx(value)
    assert text_scores([text, "a"], [reference, "b"], ["f1"])["f1"] == pytest.approx(value / 2)


# Text, reference, and exact match and F1 by torchmetrics 1.8.2 (tools/oracles/squad.py).
ANSWERS = [
    ("The Denver Broncos", "denver broncos", 1.0, 1.0),
    ("in 1,905 A.D.", "1905 AD", 0.0, 0.8),
    ("a well-known  fact", "well known fact", 0.0, 0.4),
    ("Santa Clara, California", "California", 0.0, 0.5),
    ("theatre of an age", "a theatre of the age", 1.0, 1.0),
    ("«quoted» text…", "quoted text", 0.0, 0.0),
    ("naïve\tyen yen", "the yen", 0.0, 0.5),
    ("don't", "dont", 1.0, 1.0),
]


@pytest.mark.parametrize(("text", "reference", "exact", "share"), ANSWERS)
def test_answers_are_scored_by_the_rules_of_squad(text, reference, exact, share) -> None:
    assert answer_match(text, reference) == exact
    assert answer_f1(text, reference) == pytest.approx(share, abs=1e-6)
