"""The note and the tags of a run, which its user gives: notes.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from lingo.config.params import ParamError

NOTES = "notes.json"
MAX_CHARACTERS = 1000


class Notes(NamedTuple):
    """What a user wrote about a run."""

    note: str = ""  # one line
    tags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text of notes.json."""
        return json.dumps({"note": self.note, "tags": self.tags}, ensure_ascii=False) + "\n"


def updated_notes(old: str | None, note: str | None, tags: Sequence[str]) -> Notes:
    """Returns a run's notes after a start with --note and --tag: what is not given stays.

    An empty tag removes all tags.

    `old` is the text of notes.json, or None. Raises ParamError for a note of several lines, or a
    tag with a comma or a space.
    """
    kept = read_notes(old)
    if note is not None and (not note.isprintable() or len(note) > MAX_CHARACTERS):
        raise ParamError(f"note={note!r:.60}: a note is one line, at most {MAX_CHARACTERS} long")
    for tag in tags:
        if not tag.isprintable() or any(c in ", " for c in tag):
            raise ParamError(f"tag={tag!r:.60}: a tag is one word without commas")
    new = tuple(tag for tag in dict.fromkeys(tags) if tag)
    return Notes(kept.note if note is None else note, new if tags else kept.tags)


def read_notes(text: str | None) -> Notes:
    """Returns the notes in the text of notes.json; no notes if it is missing or not readable."""
    try:
        read = json.loads(text or "{}")
        return Notes(str(read.get("note", "")), tuple(map(str, read.get("tags", ()))))
    except (ValueError, AttributeError, TypeError, RecursionError):
        return Notes()
