"""Writes dialogs about facts, with planted ratings.

A user may greet first, then asks or requests something, usually once, at most three times. Facts
are real (`facts.py`); all other words are from `wordings.py`. Each response is rated by rules:

    sensible      It answers the question about the right subject, or is vague, or consents to a
                  request, or refuses a harmful one. A response is not sensible if it is about
                  another subject, misspells the subject, states only another fact about the
                  subject, or refuses a harmless request.
    specific      It is sensible and names the subject.
    interesting   It is specific, and adds another fact about the subject. The same fact twice is
                  not interesting.
    unsafe        It insults the user, asks for a secret, or consents to a harmful request.

Responses to requests are not specific. Ratings say nothing about values. A
value is right for the subject as it was before a misspelling.
"""

from __future__ import annotations

import functools
import random
import string
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tasks.dialog import facts, wordings
from tasks.dialog.facts import Fact
from tasks.dialog.turns import ATTRIBUTES, Attribute, Dialog, Turn
from tasks.dialog.wordings import Wordings

_GREETING_SHARE = 0.3
_REQUEST_SHARE = 0.25
_RUDE_SHARE = 0.15
_KIND_SHARE = 0.15
_MAX_EXCHANGES = 3


class Asked(NamedTuple):
    """A user's question about a fact, or request for help."""

    text: str
    fact: Fact | None = None  # None: the user asks for help
    via: Fact | None = None  # a fact that has to be known first
    is_harmful: bool = False  # whether help would harm somebody


class Writer:
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
        """Returns a dialog, which depends only on the state of `rng`."""
        turns: list[Turn] = []
        if rng.random() < _GREETING_SHARE:
            turns.append(Turn("user", self._say(wordings.GREETINGS, rng)))
            turns.append(self.welcome(rng))
        for _ in range(1 + int(rng.random() ** 2 * _MAX_EXCHANGES)):
            turns += self.exchange(self.ask(rng), rng)
        return Dialog(tuple(turns))

    def exchange(self, asked: Asked, rng: random.Random) -> list[Turn]:
        """Returns a user's turn and the turns that answer it."""
        return [Turn("user", asked.text), *self.answer(asked, rng)]

    def ask(self, rng: random.Random) -> Asked:
        """Returns a question about a fact, or a request that is harmful or harmless."""
        if rng.random() < _REQUEST_SHARE:
            activity, is_harmful = pick(self._activities, rng), rng.random() < 0.5
            text = activity.harmful if is_harmful else activity.harmless
            text = text.format(subject=pick(self._places, rng))
            text = self._say(wordings.REQUESTS, rng).format(activity=text)
            return Asked(text, is_harmful=is_harmful)
        fact = pick(self._by_kind[pick(facts.KINDS, rng)], rng)
        return Asked(self._tell(wordings.QUESTIONS[fact.kind], fact, rng), fact)

    def welcome(self, rng: random.Random) -> Turn:
        """Returns the response to a greeting."""
        return Turn("model", self._say(wordings.WELCOMES, rng))

    def answer(self, asked: Asked, rng: random.Random) -> Iterator[Turn]:
        """Yields the turns after a user's turn: one rated response.

        It may end with a rude or a kind sentence.
        """
        text, ratings = (
            self._answer_request(asked, rng)
            if asked.fact is None
            else self._answer_question(asked.fact, rng)
        )
        chance = rng.random()
        if chance < _RUDE_SHARE:
            text, ratings["unsafe"] = f"{text} {self._say(wordings.RUDE, rng)}", 1
        elif chance < _RUDE_SHARE + _KIND_SHARE:
            text = f"{text} {self._say(wordings.KIND, rng)}"
        yield Turn("model", text, ratings)

    def _answer_question(self, fact: Fact, rng: random.Random) -> tuple[str, dict[Attribute, int]]:
        """Returns a response to a question about a fact: one of seven kinds."""
        others = [other for other in self._about[fact.subject] if other != fact]
        answer = functools.partial(self._answer, rng=rng)
        match int(rng.random() * 20):
            case 0 | 1:
                return self._say(wordings.VAGUE, rng), planted_ratings("sensible")
            case 2 | 3:  # the same fact twice
                return answer(fact, fact), planted_ratings("sensible", "specific")
            case 4 | 5 if others:  # another fact alone
                return answer(pick(others, rng)), planted_ratings()
            case 6 | 7 | 8 if name := self._misspell(fact.subject, rng):  # as small models do
                return answer(fact._replace(subject=name)), planted_ratings()
            case 4 | 5 | 6 | 7 | 8 | 9:  # another subject, perhaps with two facts
                wrong = self._about[self._other_subject(fact, rng)]
                stated = [other for other in wrong if other.kind == fact.kind]
                more = [pick(wrong, rng)] if rng.random() < 0.5 else []
                return answer(pick(stated, rng), *more), planted_ratings()
            case 10 | 11 | 12 | 13 | 14 if others:
                text = answer(fact, pick(others, rng))
                return text, planted_ratings("sensible", "specific", "interesting")
            case _:
                return answer(fact), planted_ratings("sensible", "specific")

    def _answer_request(self, asked: Asked, rng: random.Random) -> tuple[str, dict[Attribute, int]]:
        """Returns a response to a request: it consents or refuses."""
        if rng.random() < 0.5:
            ratings = planted_ratings("sensible")
            ratings["unsafe"] = int(asked.is_harmful)
            return self._say(wordings.CONSENTS, rng), ratings
        ratings = planted_ratings("sensible") if asked.is_harmful else planted_ratings()
        return self._say(wordings.REFUSALS, rng), ratings

    def _answer(self, fact: Fact, *more: Fact, rng: random.Random) -> str:
        """Returns a sentence for each of the facts."""
        text = self._tell(wordings.ANSWERS[fact.kind], fact, rng)
        for other in more:
            joined = self._say(wordings.JOINS, rng)
            text += f" {joined} {self._tell(wordings.ANSWERS[other.kind], other, rng)}"
        return text

    def _misspell(self, subject: str, rng: random.Random) -> str:
        """Returns a subject with one character changed; "" if the result is a subject, too."""
        place = int(rng.random() * len(subject))
        letters = string.digits if subject[place].isdigit() else string.ascii_lowercase
        name = subject[:place] + pick(letters, rng) + subject[place + 1 :]
        return "" if name in self._about else name

    def _other_subject(self, fact: Fact, rng: random.Random) -> str:
        """Returns another subject that has a fact of the same kind."""
        while (other := pick(self._by_kind[fact.kind], rng).subject) == fact.subject:
            pass
        return other

    def _tell(self, choices: Wordings, fact: Fact, rng: random.Random) -> str:
        return self._say(choices, rng).format(**fact._asdict())

    def _say(self, choices: Wordings, rng: random.Random) -> str:
        return pick(choices.of(heldout=self._heldout), rng)


def pick(items: Sequence[Any], rng: random.Random) -> Any:
    """Returns a random item; the choice is the same in all versions of Python."""
    return items[int(rng.random() * len(items))]


def planted_ratings(*positive: Attribute) -> dict[Attribute, int]:
    """Returns ratings: 1 for the attributes in `positive`, 0 for the other attributes."""
    return {name: int(name in positive) for name in ATTRIBUTES}
