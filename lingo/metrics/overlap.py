"""How many words a text shares with its reference: ROUGE, and the F1 of answers to questions.

ROUGE (Lin 2004) is computed as by the package `rouge-score` without stemming, which T5's and
Switch's evaluations use: words are runs of a-z and 0-9 in lower case, so that other scripts have
none. F1 is that of SQuAD's script (Rajpurkar et al. 2016, sec. 6.1).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_NOT_IN_WORDS = re.compile("[^a-z0-9]+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def rouge_n(text: str, reference: str, *, n: int) -> float:
    """Returns the F-measure of ROUGE-N in 0..1: of runs of n words that both texts have.

    >>> rouge_n("the cat sat", "the cat ran", n=1), rouge_n("the cat sat", "the cat ran", n=2)
    (0.6666666666666666, 0.5)
    """
    own, wanted = (_runs(words(side), n) for side in (text, reference))
    return f_measure((own & wanted).total(), own.total(), wanted.total())


def rouge_l(text: str, reference: str) -> float:
    """Returns the F-measure of ROUGE-L in 0..1: of the longest common subsequence of words.

    >>> rouge_l("the big cat sat", "the cat sat down")
    0.75
    """
    own, wanted = words(text), words(reference)
    return f_measure(_longest_common_subsequence(own, wanted), len(own), len(wanted))


def answer_f1(text: str, reference: str) -> float:
    """Returns the F1 of words in 0..1, without articles and punctuation, in lower case.

    >>> answer_f1("The Japanese yen.", "Japanese yen")
    1.0
    """
    own, wanted = (Counter(_answer_words(side)) for side in (text, reference))
    return f_measure((own & wanted).total(), own.total(), wanted.total())


def words(text: str) -> list[str]:
    """Returns the words that ROUGE compares."""
    return _NOT_IN_WORDS.sub(" ", text.lower()).split()


def f_measure(shared: int, own: int, wanted: int) -> float:
    """Returns the harmonic mean of `shared / own` and `shared / wanted`; 0 if nothing is shared."""
    return 2 * shared / (own + wanted) if shared else 0.0


def _runs(items: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(items[i : i + n]) for i in range(len(items) - n + 1))


def _longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Returns its length, by a row for each item of `a` of the usual table."""
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
