"""Dialogs: turns of speakers, ratings of responses, and sources of dialogs.

A line of a JSONL file is a dialog; ratings may be left out:

    {"turns": [{"speaker": "user", "text": "What's up?"},
               {"speaker": "model", "text": "not much.", "ratings": {"sensible": 1, "unsafe": 0}}]}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from lingo.config.params import Configurable
from lingo.data.files import File, Read
from lingo.data.index import Progress, open_index
from lingo.data.record_source import CorruptRecord, DecodedRecords, MatchingFiles
from lingo.data.sources.jsonl import json_value, lines
from tasks.dialog.message import parse_message

Speaker = Literal["user", "model", "tools"]
"""Who speaks; `tools` are called by the model, such as a calculator."""

Attribute = Literal["sensible", "specific", "interesting", "unsafe"]
"""An attribute of a response, rated 1 or 0 (Thoppilan et al. 2022, sec. 4 and 6)."""

SPEAKERS: tuple[Speaker, ...] = get_args(Speaker)
ATTRIBUTES: tuple[Attribute, ...] = get_args(Attribute)


class Turn(NamedTuple):
    """A text of one speaker."""

    speaker: Speaker
    text: str
    ratings: Mapping[Attribute, int] = {}  # 0 or 1 by attribute; only for a model's turn


class Response(NamedTuple):
    """A turn of the model, and the turns that the model reads before it."""

    context: tuple[Turn, ...]
    turn: Turn


class Dialog(NamedTuple):
    """A conversation: its turns in order."""

    turns: tuple[Turn, ...]

    def responses(self) -> Iterator[Response]:
        """Yields every turn of the model that follows another turn.

        The context includes queries to tools and their results until the model answers the user.
        The context of later turns has only the turns that the user has seen.
        """
        seen: list[Turn] = []
        searches: list[Turn] = []
        for turn in self.turns:
            context = (*seen, *searches)
            if context and turn.speaker == "model":
                yield Response(context, turn)
            message = parse_message(turn.text)
            if turn.speaker == "tools" or (turn.speaker, message.recipient) == ("model", "TS"):
                searches.append(turn)
                continue
            searches.clear()
            is_answer = turn.speaker == "model" and message.is_well_formed
            seen.append(turn._replace(text=message.text) if is_answer else turn)


class DialogSource(Configurable, interface=True):
    """A source of dialogs, which fit into memory."""

    def dialogs(self, *, progress: Progress | None = None) -> list[Dialog]:
        """Returns all dialogs in one fixed order; raises DataError if they cannot be read."""
        raise NotImplementedError(f"{type(self).__name__} has no dialogs")

    def describe(self) -> str:
        """Returns the source in one line."""
        raise NotImplementedError(f"{type(self).__name__} has no description")

    def content_id(self) -> str:
        """Returns a string that changes whenever the dialogs change."""
        content = "\n".join(map(to_json, self.dialogs())).encode()
        return hashlib.sha256(content).hexdigest()

    def remarks(self) -> list[str]:
        """Returns sentences to show the user about the dialogs."""
        return []


class DialogFiles(DecodedRecords, MatchingFiles, DialogSource):
    """Your own dialogs: a JSON object in each line of each file that matches a pattern.

    A line that is not a dialog raises an error that names the line; empty lines are skipped. Lone
    surrogates become question marks.
    """

    unit: ClassVar[str] = "line"

    def spans(self, file: File, read: Read) -> Iterator[tuple[int, int]]:
        return lines(file, read)

    def text(self, data: bytes, where: str) -> bytes:
        if not data.strip():
            return b""
        return to_json(dialog_of(json_value(data.strip(), where), where)).encode()

    def dialogs(self, *, progress: Progress | None = None) -> list[Dialog]:
        index = open_index(self, progress=progress)
        texts = index.texts(np.arange(len(index.units)))
        return [dialog_of(json.loads(text), "") for text in texts]


def to_json(dialog: Dialog) -> str:
    """Returns a dialog as a line of JSONL, without a newline."""
    turns = [turn._asdict() for turn in dialog.turns]
    for turn in turns:
        if not turn["ratings"]:
            del turn["ratings"]
    return json.dumps({"turns": turns})


def dialog_of(value: Any, where: str) -> Dialog:
    """Returns the dialog of a JSON value; raises CorruptRecord, with `where`, if it has none."""
    turns = value.get("turns") if isinstance(value, dict) else None
    if not isinstance(turns, list) or not turns:
        raise CorruptRecord(
            f'{where}: no dialog: wanted {{"turns": [{{"speaker": "user", "text": "hi"}}, ...]}}.'
        )
    return Dialog(tuple(_turn(turn, f"{where}: turn {i}") for i, turn in enumerate(turns, 1)))


def _turn(value: Any, where: str) -> Turn:
    if not isinstance(value, dict):
        raise CorruptRecord(f"{where} is no object: wanted speaker and text.")
    if extra := value.keys() - set(Turn._fields):
        raise CorruptRecord(f"{where} has {_quote(sorted(extra))}: wanted {_quote(Turn._fields)}.")
    speaker, text, ratings = (value.get(name) for name in Turn._fields)
    if speaker not in SPEAKERS:
        raise CorruptRecord(f"{where}: speaker is {speaker!r:.40}: wanted {_quote(SPEAKERS)}.")
    if not isinstance(text, str) or not text.strip():
        raise CorruptRecord(f"{where}: text is {text!r:.40}: wanted a string with a word in it.")
    text = text.encode(errors="replace").decode()
    return Turn(speaker, text, {} if ratings is None else _ratings(ratings, speaker, where))


def _ratings(value: Any, speaker: Speaker, where: str) -> dict[Attribute, int]:
    if speaker != "model":
        raise CorruptRecord(f"{where} has ratings: wanted them on turns of 'model' alone.")
    if not isinstance(value, dict) or (unknown := value.keys() - set(ATTRIBUTES)):
        given = repr(value) if not isinstance(value, dict) else _quote(sorted(unknown))
        raise CorruptRecord(f"{where}: ratings have {given:.60}: wanted {_quote(ATTRIBUTES)}.")
    for name, rating in value.items():
        if type(rating) is not int or rating not in (0, 1):
            raise CorruptRecord(f"{where}: {name} is {rating!r:.40}: wanted 0 or 1.")
    return value


def _quote(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
