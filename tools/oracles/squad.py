"""Prints exact match and F1 of answers by the evaluation of SQuAD in `torchmetrics`.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch torchmetrics==1.8.2
    /tmp/oracle/bin/python -m tools.oracles.squad

It runs without lingo, in an environment of its own. The lines go into
tests/lingo/metrics/test_text_overlap.py.
"""

from __future__ import annotations

import importlib

PAIRS = [
    ("The Denver Broncos", "denver broncos"),
    ("in 1,905 A.D.", "1905 AD"),
    ("a well-known  fact", "well known fact"),
    ("Santa Clara, California", "California"),
    ("theatre of an age", "a theatre of the age"),
    ("«quoted» text…", "quoted text"),
    ("naïve\tyen yen", "the yen"),
    ("don't", "dont"),
]


def main() -> None:
    """Prints a line for each pair."""
    squad = importlib.import_module("torchmetrics.functional.text").squad
    for text, reference in PAIRS:
        answers = {"text": [reference], "answer_start": [0]}
        scores = squad([{"prediction_text": text, "id": "0"}], [{"answers": answers, "id": "0"}])
        exact, share = (round(float(scores[name]) / 100, 6) for name in ("exact_match", "f1"))
        print(f"    ({text!r}, {reference!r}, {exact}, {share}),")


if __name__ == "__main__":
    main()
