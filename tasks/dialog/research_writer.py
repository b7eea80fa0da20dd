"""Writes dialogs in which the model asks tools before it states facts, as for LaMDA.

    user    Which code does the money of Japan have?
    model   TS, Japan currency
    tools   Japan / currency / Japanese Yen
    model   TS, Japanese Yen code
    tools   Japanese Yen / ISO 4217 code / JPY
    model   User, Banks write JPY for the Japanese Yen.

The tools' turns are the tools' real answers. If these do not contain the fact in question, the
model's answer is vague.

A small model that remembers the facts of training need not learn to copy what tools find. So a
share of the questions has invented names, the same in all turns. An invented name is the beginning
of one name and the end of another:

    user    What is the currency of Jaeden?
    model   TS, Jaeden currency
    tools   Jaeden / currency / Japanish Krona
    model   User, In Jaeden you need the Japanish Krona.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator, Mapping, Sequence

from tasks.dialog import wordings
from tasks.dialog.facts import Fact
from tasks.dialog.research import Search
from tasks.dialog.tools.tool import Tool
from tasks.dialog.turns import Turn
from tasks.dialog.writer import Asked, Writer, pick

_TWO_STEPS_SHARE = 0.1
_QUERIES = {
    "currency": "{subject} currency",
    "language": "{subject} official language",
    "code": "{subject} code",
    "own_name": "{subject} name itself",
    "word": "{subject} in {language}",
    "purpose": "{subject} purpose",
    "result": "{subject}",
}


class ResearchWriter(Writer):
    """Writes dialogs whose responses are sensible and based on the tools' results."""

    def __init__(
        self,
        known: Sequence[Fact],
        tools: Sequence[Tool],
        *,
        heldout: bool,
        invented_share: float = 0.0,
    ) -> None:
        super().__init__(known, heldout=heldout)
        self._tools, self._invented_share = tools, invented_share
        self._find = functools.cache(self._find_now)
        codes = {fact.subject: fact for fact in self._by_kind["code"]}
        self._two_steps = [
            (fact, codes[fact.value]) for fact in self._by_kind["currency"] if fact.value in codes
        ]

    def ask(self, rng: random.Random) -> Asked:
        if not self._two_steps or rng.random() >= _TWO_STEPS_SHARE:
            return super().ask(rng)
        via, fact = pick(self._two_steps, rng)
        return Asked(self._tell(wordings.TWO_STEPS, via, rng), fact, via)

    def exchange(self, asked: Asked, rng: random.Random) -> list[Turn]:
        turns = super().exchange(asked, rng)
        # a share of 0 draws no number, so that dialogs stay as they were without invented names
        if asked.fact and self._invented_share and rng.random() < self._invented_share:
            names = self._invent(asked, rng)
            return [turn._replace(text=_rename(turn.text, names)) for turn in turns]
        return turns

    def welcome(self, rng: random.Random) -> Turn:
        return _to_user(super().welcome(rng).text)

    def answer(self, asked: Asked, rng: random.Random) -> Iterator[Turn]:
        if asked.fact is None:
            choices = wordings.REFUSALS if asked.is_harmful else wordings.CONSENTS
            yield _to_user(self._say(choices, rng))
            return
        for fact in (asked.via, asked.fact):
            if fact is None:
                continue
            search = self._find(_QUERIES[fact.kind].format(**fact._asdict()))
            yield Turn("model", search.request)
            yield Turn("tools", search.result)
            if not {fact.value, fact.line} & {*search.snippets}:
                yield _to_user(self._say(wordings.VAGUE, rng))
                return
        yield _to_user(self._answer(asked.fact, rng=rng))

    def _find_now(self, query: str) -> Search:
        return Search(query, [snippet for tool in self._tools for snippet in tool(query)])

    def _invent(self, asked: Asked, rng: random.Random) -> dict[str, str]:
        """Returns an invented name for each name in a question and its answer.

        The numbers of arithmetic stay, since the calculator is right about them.
        """
        names: dict[str, str] = {}
        for fact in (asked.via, asked.fact):
            if fact is not None and fact.kind != "result":
                other = pick(self._by_kind[fact.kind], rng)
                names[fact.subject] = _splice(fact.subject, other.subject, rng)
                names[fact.value] = _splice(fact.value, other.value, rng)
        return names


def _splice(first: str, last: str, rng: random.Random) -> str:
    """Returns the beginning of one name and the end of another, each cut at a random place."""
    begin, end = (1 + int(rng.random() * len(name)) for name in (first, last))
    return " ".join((first[:begin] + last[end:]).split())


def _rename(text: str, names: Mapping[str, str]) -> str:
    """Returns a text with whole names replaced; of overlapping names, the longest counts."""
    if not names:
        return text
    choices = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"(?<!\w)(?:{choices})(?!\w)", lambda match: names[match[0]], text)


def _to_user(text: str) -> Turn:
    return Turn("model", f"User, {text}")
