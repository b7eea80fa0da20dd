"""The record of the user's own files that a run was trained with: name -> path and digest.

environment.json and each checkpoint have this record, without the files' bytes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, cast

from lingo.config.source_files import MAX_PART, SourceFile

FOLDER = "source"
"""A run's folder with copies of the files, as they were."""

_NAME = re.compile(rf"[\w~-]{{1,{MAX_PART}}}(/[\w~-]{{1,{MAX_PART}}})*\.py", re.ASCII)


def to_json(files: Mapping[str, SourceFile]) -> dict[str, dict[str, str]]:
    """Returns paths and digests by name."""
    return {name: {"path": f.path, "sha256": f.sha256} for name, f in files.items()}


def from_json(value: Any) -> dict[str, SourceFile]:
    """Returns the files of a value that `to_json` has returned, without content.

    Entries of another form are left out: anybody may have written them.
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
    """Returns the names, in `before` and in `now`, of each file whose content differs."""
    return [
        (old, new)
        for new, old in _pairs(before, now).items()
        if before[old].sha256 != now[new].sha256
    ]


def merge(before: Mapping[str, SourceFile], now: Mapping[str, SourceFile]) -> dict[str, SourceFile]:
    """Returns the files of `now`, and the files of `before` that `now` does not have."""
    replaced = {*_pairs(before, now).values()}
    kept = {name: file for name, file in before.items() if name not in replaced}
    return dict(sorted({**kept, **now}.items()))


def _pairs(before: Mapping[str, SourceFile], now: Mapping[str, SourceFile]) -> dict[str, str]:
    """Returns name in `now` -> name in `before`, for each file that is in both.

    A file has the same path in both; or else the same name, as in a directory that was moved; or
    else the same last part of its name, as if it is imported from another directory.
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
