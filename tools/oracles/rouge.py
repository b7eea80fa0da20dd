"""Prints what the package `rouge-score` gives pairs of texts, for tests of lingo.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install rouge-score==0.1.2
    /tmp/oracle/bin/python -m tools.oracles.rouge

It runs without lingo, in an environment of its own. The lines go into
tests/lingo/metrics/test_text_overlap.py.
"""

from __future__ import annotations

import importlib

PAIRS = [
    ("the cat sat on the mat", "the cat sat on a mat"),
    ("Returns the sum of all elements.", "Return a sum of the elements, in float32."),
    ("a b c d e f g", "g f e d c b a"),
    ("the the the the", "the cat"),
    ("", "not empty"),
    ("Größe über alles", "grosse uber alles"),
    ("x_1 = f(x_0), don't", "x 1 f x 0 don t"),
    ("日本語", "日本語"),
    ("one two three four five six", "two four six one three five"),
]


def main() -> None:
    """Prints a line for each pair."""
    names = ["rouge1", "rouge2", "rougeL"]
    scorer = importlib.import_module("rouge_score.rouge_scorer").RougeScorer(names)
    for text, reference in PAIRS:
        scores = scorer.score(target=reference, prediction=text)
        values = tuple(round(scores[name].fmeasure, 9) for name in names)
        print(f"    ({text!r}, {reference!r}, {values}),")


if __name__ == "__main__":
    main()
