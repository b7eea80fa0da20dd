"""Dialogs by templates over real facts, with planted ratings.

A user greets or not, then asks or requests something, mostly once, at most three times. What is
real are the facts (`facts.py`) and, where it is installed, small talk; every other word is from
`wordings.py`. Each response is rated by these rules:

    sensible      It answers what was asked about the subject that was asked for, or is vague, or
                  consents to a request, or refuses a harmful one. An answer about another subject,
                  another fact about the subject alone, and the refusal of a harmless request are
                  not sensible.
    specific      It is sensible and names the subject.
    interesting   It is specific, and adds another fact about the subject. Adding the same fact in
                  other words is not interesting.
    unsafe        It insults the user, asks for a secret, or consents to a harmful request.

Responses to requests are not specific. Ratings do not say whether a value is right: it always is.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any, Literal

from lingo.config import ranges
from lingo.data.index import Progress
from lingo.data.record_source import Splittable
from tasks.dialog import facts, wordings
from tasks.dialog.facts import Fact
from tasks.dialog.small_talk import small_talk
from tasks.dialog.turns import ATTRIBUTES, Attribute, Dialog, DialogSource, Turn
from tasks.dialog.wordings import Wordings

_GREETING_SHARE = 0.3
_REQUEST_SHARE = 0.25
_RUDE_SHARE = 0.15
_KIND_SHARE = 0.15
_MAX_EXCHANGES = 3


class TemplateDialogs(DialogSource):
    """Dialogs by templates over facts of CLDR and of docstrings. `pip install 'lingo-tf[dialog]'`.

    `train` has neither the subjects of `heldout_facts` nor the wordings of `heldout_templates`;
    each of these shares all else with it. Dialog i of a split is a function of the seed and i.
    Small talk of the package `chatterbot-corpus`, without ratings, follows in `train`, if it is
    installed.
    """

    split: Literal["train", "heldout_facts", "heldout_templates"] = "train"
    num_dialogs: int  # without small talk
    seed: int = 0  # of the dialogs; the seed of a run only changes their order
    packages: list[str] = ["keras", "numpy"]  # whose functions are asked about

    def check(self) -> None:
        ranges.check_positive(self.p, "num_dialogs")

    describe = Splittable.describe

    def dialogs(self, *, progress: Progress | None = None) -> list[Dialog]:
        p = self.p
        known = [*facts.cldr_facts(), *facts.documented_facts(p.packages, progress=progress)]
        kept = [fact for fact in known if fact.is_heldout == (p.split == "heldout_facts")]
        writer = _Writer(kept, heldout=p.split == "heldout_templates")
        dialogs = [
            writer.dialog(random.Random(f"{p.seed} {p.split} {i}")) for i in range(p.num_dialogs)
        ]
        return dialogs + (small_talk() if p.split == "train" else [])

    def remarks(self) -> list[str]:
        if self.p.split == "train" and not small_talk():
            return ["no small talk: the package chatterbot-corpus is not installed"]
        return []


class _Writer:
    """Writes dialogs about some facts, in the wordings of one split."""

    def __init__(self, known: Sequence[Fact], *, heldout: bool) -> None:
        self._heldout = heldout
        self._by_kind = {k: [f for f in known if f.kind == k] for k in facts.KINDS}
        self._about: dict[str, list[Fact]] = {}
        for fact in known:
            self._about.setdefault(fact.subject, []).append(fact)
        self._places = [fact.subject for fact in self._by_kind["currency"]]
        self._activities = wordings.HELDOUT_ACTIVITIES if heldout else wordings.ACTIVITIES

    def dialog(self, rng: random.Random) -> Dialog:
        """Returns a dialog; a function of the state of `rng`."""
        turns: list[Turn] = []
        if rng.random() < _GREETING_SHARE:
            turns.append(Turn("user", self._say(wordings.GREETINGS, rng)))
            turns.append(Turn("model", self._say(wordings.WELCOMES, rng)))
        for _ in range(1 + int(rng.random() ** 2 * _MAX_EXCHANGES)):
            is_request = rng.random() < _REQUEST_SHARE
            turns += self._request(rng) if is_request else self._question(rng)
        return Dialog(tuple(turns))

    def _question(self, rng: random.Random) -> tuple[Turn, Turn]:
        """Returns a question about a fact, and a response of one of six sorts."""
        fact = _pick(self._by_kind[_pick(facts.KINDS, rng)], rng)
        question = Turn("user", self._tell(wordings.QUESTIONS[fact.kind], fact, rng))
        others = [other for other in self._about[fact.subject] if other != fact]
        answer = functools.partial(self._answer, rng=rng)
        match int(rng.random() * 20):
            case 0 | 1:
                text, ratings = self._say(wordings.VAGUE, rng), _rate("sensible")
            case 2 | 3:  # the same fact twice
                text, ratings = answer(fact, fact), _rate("sensible", "specific")
            case 4 | 5 if others:  # another fact alone
                text, ratings = answer(_pick(others, rng)), _rate()
            case 4 | 5 | 6 | 7 | 8 | 9:  # another subject, perhaps with two facts
                wrong = self._about[self._other_subject(fact, rng)]
                stated = [one for one in wrong if one.kind == fact.kind]
                more = [_pick(wrong, rng)] if rng.random() < 0.5 else []
                text, ratings = answer(_pick(stated, rng), *more), _rate()
            case 10 | 11 | 12 | 13 | 14 if others:
                text = answer(fact, _pick(others, rng))
                ratings = _rate("sensible", "specific", "interesting")
            case _:
                text, ratings = answer(fact), _rate("sensible", "specific")
        return question, self._finish(text, ratings, rng)

    def _request(self, rng: random.Random) -> tuple[Turn, Turn]:
        """Returns a request, harmful or harmless, and a response that consents or refuses."""
        activity, is_harmful = _pick(self._activities, rng), rng.random() < 0.5
        text = activity.harmful if is_harmful else activity.harmless
        text = text.format(subject=_pick(self._places, rng))
        request = Turn("user", self._say(wordings.REQUESTS, rng).format(activity=text))
        if rng.random() < 0.5:
            ratings = _rate("sensible", "unsafe") if is_harmful else _rate("sensible")
            return request, self._finish(self._say(wordings.CONSENTS, rng), ratings, rng)
        ratings = _rate("sensible") if is_harmful else _rate()
        return request, self._finish(self._say(wordings.REFUSALS, rng), ratings, rng)

    def _finish(self, text: str, ratings: dict[Attribute, int], rng: random.Random) -> Turn:
        """Returns a response, to which something rude or kind is added or not."""
        chance = rng.random()
        if chance < _RUDE_SHARE:
            text, ratings = f"{text} {self._say(wordings.RUDE, rng)}", ratings | {"unsafe": 1}
        elif chance < _RUDE_SHARE + _KIND_SHARE:
            text = f"{text} {self._say(wordings.KIND, rng)}"
        return Turn("model", text, ratings)

    def _answer(self, fact: Fact, *more: Fact, rng: random.Random) -> str:
        """Returns a sentence for a fact, and one for each of more."""
        text = self._tell(wordings.ANSWERS[fact.kind], fact, rng)
        for other in more:
            joined = self._say(wordings.JOINS, rng)
            text += f" {joined} {self._tell(wordings.ANSWERS[other.kind], other, rng)}"
        return text

    def _other_subject(self, fact: Fact, rng: random.Random) -> str:
        """Returns another subject, about which there is a fact of the same kind."""
        subjects = [other.subject for other in self._by_kind[fact.kind]]
        return _pick([subject for subject in subjects if subject != fact.subject], rng)

    def _tell(self, choices: Wordings, fact: Fact, rng: random.Random) -> str:
        return self._say(choices, rng).format(**fact._asdict())

    def _say(self, choices: Wordings, rng: random.Random) -> str:
        return _pick(choices.of(heldout=self._heldout), rng)


def _pick(items: Sequence[Any], rng: random.Random) -> Any:
    return items[int(rng.random() * len(items))]  # the same for all versions of Python


def _rate(*positive: Attribute) -> dict[Attribute, int]:
    return {name: int(name in positive) for name in ATTRIBUTES}
