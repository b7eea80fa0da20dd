"""Records which of the user's own files a run was trained with: name -> path and digest.

environment.json and each checkpoint contain this record. It does not contain the files' bytes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, cast

from lingo.config.source_files import MAX_PART, SourceFile

FOLDER = "source"
"""The folder in a run's directory with copies of the files, as they were during training."""

_NAME = re.compile(rf"[\w~-]{{1,{MAX_PART}}}(/[\w~-]{{1,{MAX_PART}}})*\.py", re.ASCII)


def to_json(files: Mapping[str, SourceFile]) -> dict[str, dict[str, str]]:
    """Returns the record of some files: name -> {"path": ..., "sha256": ...}."""
    return {name: {"path": f.path, "sha256": f.sha256} for name, f in files.items()}


def from_json(value: Any) -> dict[str, SourceFile]:
    """Returns name -> file, without content, from a record that `to_json` has returned.

    Entries of any other form are left out, since the record is read from files that anybody may
    have written.
    """
    entries = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    found: dict[str, SourceFile] = {}
    for name, entry in entries.items():
        match entry:
            case {"path": str(path), "sha256": str(sha256)} if _NAME.fullmatch(name):
                found[name] = SourceFile(path, sha256)
            case _:
                pass
    return found


def changed_names(
    before: Mapping[str, SourceFile], now: Mapping[str, SourceFile]
) -> list[tuple[str, str]]:
    """Returns (name in `before`, name in `now`) for each file in both whose content differs."""
    return [
        (old, new)
        for new, old in _pairs(before, now).items()
        if before[old].sha256 != now[new].sha256
    ]


def merge(before: Mapping[str, SourceFile], now: Mapping[str, SourceFile]) -> dict[str, SourceFile]:
    """Returns all files of `now`, and the files of `before` that `now` has under no name."""
    replaced = {*_pairs(before, now).values()}
    kept = {name: file for name, file in before.items() if name not in replaced}
    return dict(sorted({**kept, **now}.items()))


def _pairs(before: Mapping[str, SourceFile], now: Mapping[str, SourceFile]) -> dict[str, str]:
    """Returns name in `now` -> name in `before`, for each file that is in both.

    Files are matched by path first; then by name, as in a directory that was moved; then by the
    last part of the name, as for a file that is now imported from another directory. A match must
    be unique.
    """
    keys: list[Callable[[str, SourceFile], str]] = [
        lambda name, file: file.path,
        lambda name, file: name,
        lambda name, file: PurePosixPath(name).name,
    ]
    pairs: dict[str, str] = {}
    for key in keys:
        olds, news = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
        for name in before.keys() - pairs.values():
            olds[key(name, before[name])].append(name)
        for name in now.keys() - pairs.keys():
            news[key(name, now[name])].append(name)
        both = ((olds[k], news[k]) for k in olds.keys() & news.keys())
        pairs |= {new[0]: old[0] for old, new in both if len(old) == len(new) == 1}
    return pairs
