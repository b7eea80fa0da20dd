"""Runs in buckets on the command line: addresses stand for local copies, which are brought down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lingo.config.options import declarations, word_field
from lingo.storage.bucket import cache

RUNS = ("run", "logdir")
"""The flags whose values may be addresses of runs, of all verbs."""

_COPIES = {"copy": ("from", "to")}  # verb -> more of these flags, of runs that are not brought down

_FOLDERS = {"runs": "directory"}  # verb -> its word, a folder of runs
_TEXTS = ("show", "diff", "why", "describe", "plan", "import", "sweep", "train")  # read no weights
_ALL = ("checkpoint",)


def local(verb: str, name: str, value: Any) -> Any:
    """Returns the value of a flag or word with each address of a run replaced by its local copy."""
    if isinstance(value, list):
        return [local(verb, name, item) for item in value]
    names = (*RUNS, *_COPIES.get(verb, ()), _FOLDERS.get(verb, ""))
    if isinstance(value, str) and name in names and cache.is_address(value):
        return str(cache.local_copy(value))
    return value


def bring_down(verb: str, options: Any) -> None:
    """Brings the local copies of a verb's runs up to date; does nothing for other directories.

    Only the newest checkpoint is read, but all of them if a step is asked for, and none for verbs
    that read no weights. Raises BucketError if a bucket cannot be read.
    """
    has_step = verb in _ALL or getattr(options, "step", None) is not None
    checkpoints = 0 if verb in _TEXTS else None if has_step else 1
    for folder in map(Path, _values(verb, options)):
        if (address := cache.address_of(folder)) is None:
            continue
        from lingo.storage.bucket import mirror  # imports NumPy, which `lingo list` does without

        if verb in ("runs", "sweep", "launch"):
            mirror.pull_all(address, folder)
        else:
            mirror.pull(address, folder, checkpoints=checkpoints)


def _values(verb: str, options: Any) -> Iterator[str]:
    """Yields the directories of runs among a verb's options."""
    fields = [declared.field for declared in declarations(type(options)) if declared.flag in RUNS]
    if (word := word_field(type(options))[0]) and word == _FOLDERS.get(verb):
        fields.append(word)
    for field in fields:
        value = getattr(options, field)
        for item in value if isinstance(value, tuple | list) else [value]:
            if isinstance(item, str):
                yield item
