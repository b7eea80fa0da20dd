"""Errors of words or characters in transcripts, as additive counts.

The word error rate is the sum of edits over the sum of reference words, in percent; it may exceed
100. An edit distance is Levenshtein's: substitutions, deletions and insertions cost 1 each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

_TAGS = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")
_DROPPED = re.compile(r"[^\w\s'-]|_")

Unit = Literal["words", "characters"]
"""What is compared: words between white space, or characters, white space squeezed."""


class Edits(NamedTuple):
    """The edits that turn a reference into a hypothesis; their number is the least possible."""

    substitutions: int
    deletions: int  # of the reference that the hypothesis lacks
    insertions: int  # in the hypothesis that the reference lacks

    @property
    def total(self) -> int:
        """The edit distance."""
        return sum(self)


def edits(reference: Sequence[Any], hypothesis: Sequence[Any]) -> Edits:
    """Returns the fewest edits; among these, the ones with most substitutions.

    >>> edits("the cat sat on the mat".split(), "the cat sat mat the hat up".split())
    Edits(substitutions=2, deletions=0, insertions=1)
    """
    # A cell holds the edits, then the deletions and insertions: the least cell wins.
    row = [(j, j, 0, j) for j in range(len(hypothesis) + 1)]
    for i, wanted in enumerate(reference, 1):
        above_left, row[0] = row[0], (i, i, i, 0)
        for j, given in enumerate(hypothesis, 1):
            above, left = row[j], row[j - 1]
            differs = int(wanted != given)
            row[j], above_left = (
                min(
                    (above_left[0] + differs, *above_left[1:]),
                    (above[0] + 1, above[1] + 1, above[2] + 1, above[3]),
                    (left[0] + 1, left[1] + 1, left[2], left[3] + 1),
                ),
                above,
            )
    total, _, deletions, insertions = row[-1]
    return Edits(total - deletions - insertions, deletions, insertions)


def normalize_transcript(text: str, *, drops_tags: bool = True) -> str:
    """Returns a transcript in lower case without punctuation, but for ' and -, as Lingvo has it.

    White space is squeezed. With `drops_tags`, <tags> and [comments] are left out, too.

    >>> normalize_transcript("<noise> It's  well-known, [laughs] Bob!")
    "it's well-known bob"
    """
    text = _TAGS.sub(" ", text) if drops_tags else text
    return " ".join(_DROPPED.sub(" ", text.lower()).split())


def word_errors(
    references: Sequence[str],
    hypotheses: Sequence[Sequence[str]],
    *,
    unit: Unit = "words",
    is_normalized: bool = False,
) -> dict[str, np.ndarray]:
    """Returns the state of word errors, float64 scalars that add up over batches.

    Args:
        references: the transcript of each of N utterances.
        hypotheses: for each utterance the transcripts that were decoded, the best one first; an
            utterance without any counts as an empty transcript.
        unit: what is compared.
        is_normalized: whether both sides pass `normalize_transcript` first.

    Returns:
        `substitutions`, `deletions` and `insertions` of the best hypotheses; `oracle_errors`, the
        edits of each utterance's hypothesis that has the fewest; `reference_units`; `utterances`;
        `utterances_right`, whose best hypothesis has no edit.

    >>> state = word_errors(["a b"], [["a c", "a b"]])
    >>> float(state["substitutions"]), float(state["oracle_errors"])
    (1.0, 0.0)
    """
    sums = dict.fromkeys(_ENTRIES, 0)
    for reference, texts in zip(references, hypotheses, strict=True):
        wanted = _units(reference, unit, is_normalized)
        every = [edits(wanted, _units(text, unit, is_normalized)) for text in texts or [""]]
        best = every[0]
        for name, value in zip(Edits._fields, best, strict=True):
            sums[name] += value
        sums["oracle_errors"] += min(one.total for one in every)
        sums["reference_units"] += len(wanted)
        sums["utterances"] += 1
        sums["utterances_right"] += not best.total
    return {name: np.asarray(value, np.float64) for name, value in sums.items()}


def word_error_results(state: Mapping[str, Any]) -> dict[str, float]:
    """Returns the error rates of a state that `word_errors` returns; {} without utterances.

    `wer` and `oracle_wer`, and `substitutions`, `deletions` and `insertions` as parts of `wer`, are
    in percent of the reference's units; `sentence_accuracy` is in 0..1. Without any reference unit
    there are no rates.

    >>> word_error_results(word_errors(["a b"], [["a c", "a b"]]))["wer"]
    50.0
    """
    counts = {name: float(state[name]) for name in _ENTRIES}
    if not counts["utterances"]:
        return {}
    results = {"sentence_accuracy": counts["utterances_right"] / counts["utterances"]}
    if size := counts["reference_units"]:
        parts = {name: 100 * counts[name] / size for name in Edits._fields}
        oracle = 100 * counts["oracle_errors"] / size
        results = {"wer": sum(parts.values()), "oracle_wer": oracle} | parts | results
    return results


def _units(text: str, unit: Unit, is_normalized: bool) -> Sequence[str]:
    words = (normalize_transcript(text) if is_normalized else text).split()
    return words if unit == "words" else " ".join(words)


_ENTRIES = (
    *Edits._fields,
    *("oracle_errors", "reference_units", "utterances", "utterances_right"),
)

STATE = frozenset(_ENTRIES)
"""Names of a state's entries."""
