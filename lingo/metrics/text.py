"""Corpus scores of texts against references; BLEU and chrF by the library sacrebleu.

A corpus score is not a mean over texts: BLEU and chrF divide sums of counts. So texts are collected
and scored once, and their split into batches has no influence.

ROUGE is computed as in the package `rouge-score` without stemming, which T5's and Switch's
evaluations use: words are runs of a-z and 0-9 in lower case, so that other scripts have no words.
"""

from __future__ import annotations

import importlib
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal

from lingo.config.base.errors import MissingPackage
from lingo.metrics.transcript import word_error_results, word_errors

Measure = Literal[
    "bleu",
    "bleu_uncased",
    "chrf",
    "exact_match",
    "rouge1",
    "rouge2",
    "rougeL",
    "f1",
    "wer",
    "wer_normalized",
    "cer",
]
"""The measures: BLEU (Papineni et al. 2002), BLEU without regard to case, chrF (Popovic 2015), the
share of exact matches, ROUGE of words, word pairs and subsequences (Lin 2004), the F1 of words in
answers (Rajpurkar et al. 2016), and the rates of wrong words and characters in transcripts."""

_NOT_IN_WORDS = re.compile("[^a-z0-9]+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def text_scores(
    texts: Sequence[str], references: Sequence[str], measures: Iterable[Measure]
) -> dict[str, float]:
    """Returns the scores of N texts, given a reference for each; {} if there are no texts.

    `bleu` and `chrf`, in 0..100, equal the output of the command `sacrebleu` with its default
    settings, and `bleu_uncased` equals the output with `-lc --tokenize intl`, as MLPerf requires.
    `wer`, `wer_normalized` and `cer` are the edits of all texts in percent of the words, normalized
    words and characters of all references; NaN if the references have none.
    Other scores are means over texts: `rouge1`, `rouge2` and `rougeL` in 0..100, `f1` and
    `exact_match` in 0..1. Raises MissingPackage as `import_sacrebleu` does.
    """
    return {name: score for name, (score, _) in _scores(texts, references, measures).items()}


def signatures(measures: Iterable[Measure]) -> list[str]:
    """Returns the signatures of sacrebleu (Post 2018), which name the settings and the version."""
    return [text for _, text in _scores(["a"], ["a"], measures).values() if text]


def import_sacrebleu() -> ModuleType:
    """Imports `sacrebleu.metrics`; raises MissingPackage if it is not installed."""
    try:
        return importlib.import_module("sacrebleu.metrics")
    except ImportError:
        raise MissingPackage(
            "BLEU and chrF need a package that is not installed: pip install 'lingo-tf[text]'"
        ) from None


def _scores(
    texts: Sequence[str], references: Sequence[str], measures: Iterable[Measure]
) -> dict[str, tuple[float, str]]:
    """Returns each measure's score and signature; "" if the measure has no signature."""
    if not texts:
        return {}
    return {measure: _score(texts, references, measure) for measure in measures}


def _score(texts: Sequence[str], references: Sequence[str], measure: Measure) -> tuple[float, str]:
    if measure in _ERRORS:
        state = word_errors(references, [[text] for text in texts], **_ERRORS[measure])
        return word_error_results(state).get("wer", math.nan), ""
    if measure in _OF_A_TEXT:
        scores = map(_OF_A_TEXT[measure], texts, references)
        return math.fsum(scores) / len(texts), ""
    metrics = import_sacrebleu()
    uncased = {"lowercase": True, "tokenize": "intl"} if measure == "bleu_uncased" else {}
    # force: no advice to detokenize if many texts end in " ."
    metric: Any = metrics.CHRF() if measure == "chrf" else metrics.BLEU(force=True, **uncased)
    score = metric.corpus_score(list(texts), [list(references)]).score
    return float(score), f"{type(metric).__name__}|{metric.get_signature().format()}"


# ---- words that texts share ----------------------------------------------------------------------


def rouge_n(text: str, reference: str, *, n: int) -> float:
    """Returns the F-measure of ROUGE-N, in 0..1, from the n-grams that both texts have.

    >>> rouge_n("the cat sat", "the cat ran", n=1), rouge_n("the cat sat", "the cat ran", n=2)
    (0.6666666666666666, 0.5)
    """
    own, wanted = (_runs(words(side), n) for side in (text, reference))
    return f_measure((own & wanted).total(), own.total(), wanted.total())


def rouge_l(text: str, reference: str) -> float:
    """Returns the F-measure of ROUGE-L, in 0..1, from the longest common subsequence of words.

    >>> rouge_l("the big cat sat", "the cat sat down")
    0.75
    """
    own, wanted = words(text), words(reference)
    return f_measure(_longest_common_subsequence(own, wanted), len(own), len(wanted))


def answer_f1(text: str, reference: str) -> float:
    """Returns the F1 of words, in 0..1; articles, punctuation and case do not count.

    >>> answer_f1("The Japanese yen.", "Japanese yen")
    1.0
    """
    own, wanted = (Counter(_answer_words(side)) for side in (text, reference))
    return f_measure((own & wanted).total(), own.total(), wanted.total())


def answer_match(text: str, reference: str) -> float:
    """Returns 1 if two answers are equal by SQuAD's rules, else 0.

    Articles, punctuation, case and white space do not count (Rajpurkar et al. 2016, sec. 6.1).

    >>> answer_match("The  yen.", "yen"), answer_match("yen", "yens")
    (1.0, 0.0)
    """
    return float(_answer_words(text) == _answer_words(reference))


def words(text: str) -> list[str]:
    """Returns the words that ROUGE compares."""
    return _NOT_IN_WORDS.sub(" ", text.lower()).split()


def f_measure(shared: int, own: int, wanted: int) -> float:
    """Returns the harmonic mean of `shared / own` and `shared / wanted`; 0 if nothing is shared."""
    return 2 * shared / (own + wanted) if shared else 0.0


def _runs(items: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(items[i : i + n]) for i in range(len(items) - n + 1))


def _longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Returns the length of the longest common subsequence, by dynamic programming."""
    lengths = [0] * (len(b) + 1)
    for item in a:
        above_left = 0
        for j, other in enumerate(b, 1):
            above = lengths[j]
            lengths[j] = above_left + 1 if item == other else max(above, lengths[j - 1])
            above_left = above
    return lengths[-1]


def _answer_words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


_OF_A_TEXT: Mapping[str, Callable[[str, str], float]] = {
    "exact_match": lambda text, reference: float(text == reference),
    "rouge1": lambda text, reference: 100 * rouge_n(text, reference, n=1),
    "rouge2": lambda text, reference: 100 * rouge_n(text, reference, n=2),
    "rougeL": lambda text, reference: 100 * rouge_l(text, reference),
    "f1": answer_f1,
}
"""The measures that are means over texts."""

_ERRORS: Mapping[str, Mapping[str, Any]] = {
    "wer": {},
    "wer_normalized": {"is_normalized": True},
    "cer": {"unit": "characters"},
}
"""The measures of transcripts, with the arguments of `word_errors`."""
