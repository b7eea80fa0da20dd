"""The files of Python that this user has trained by `--exp`, with their digests.

    ~/.config/lingo/trained_files/<digest of the path>      <digest of the content>  <name>  <path>

While such a file, and what it imports of its own directory, is the same, the configuration of a run
may name its classes without `--trust`. A file that cannot be read or written only costs this.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shlex
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from lingo.config import regular_file
from lingo.config.errors import ParamError
from lingo.config.source_files import SourceFile, find_imports

MAX_FILES = 1000  # the least recently trained are forgotten

_MAX_BYTES = 2**13  # of an entry
_GAP = "  "  # between its parts


class _Entry(NamedTuple):
    """A file as it was trained."""

    sha256: str
    name: str  # as `find_source` names it
    path: str


def remember(files: Mapping[str, SourceFile]) -> None:
    """Remembers files as they are now, by name; raises OSError if that cannot be written."""
    for name, file in files.items():
        _write(_Entry(file.sha256, name, file.path))


def is_trusted(file: Path, trust: Iterable[str | os.PathLike[str]]) -> bool:
    """Returns whether a file is in `trust`, or was trained as it is now, with all it imports."""
    path = os.path.realpath(file)
    if path in [os.path.realpath(os.fspath(trusted)) for trusted in trust]:
        return True
    return _read(path) is not None and not _changed_files(path)


def distrust(file: Path) -> str:
    """Returns why a file is not trusted, and what to do."""
    hint = f"To run it: --trust={shlex.quote(str(file))}"
    if not os.path.exists(file):
        hint += " It is not there any more; name it where it is now."
    elif _read(path := os.path.realpath(file)) is not None:
        changed = ", ".join(_changed_files(path))
        return f"which was trained, but has changed since then: {changed}. {hint}"
    return f"a file outside the trusted places. {hint}"


def _changed_files(path: str) -> list[str]:
    """Returns which of a file and its imports are not as they were trained; [] if all are."""
    entry = _read(path)
    try:
        files = find_imports(Path(path), entry.name if entry else "")
    except ParamError:
        return [path]
    return [f.path for f in files if (e := _read(f.path)) is None or e.sha256 != f.sha256]


def _folder() -> Path:
    """Returns the directory of the entries; raises OSError if the user has no home."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(home):  # then it counts as not set, by the standard
        home = os.path.expanduser(os.path.join("~", ".config"))
    if not os.path.isabs(home):  # never in the working directory: anybody may have written that
        raise OSError(errno.ENOENT, "there is no home directory")
    return Path(home, "lingo", "trained_files")


def _place(path: str) -> Path:
    return _folder() / hashlib.sha256(os.fsencode(path)).hexdigest()


def _read(path: str) -> _Entry | None:
    """Returns the entry of a file, or None if there is none that can be read."""
    try:
        content = regular_file.read(_place(path), max_bytes=_MAX_BYTES)
    except OSError:
        return None
    parts = os.fsdecode(content).removesuffix("\n").split(_GAP, 2)
    return _Entry(*parts) if len(parts) == len(_Entry._fields) and parts[-1] == path else None


def _write(new: _Entry) -> None:
    """Writes an entry, whole or not at all, and removes the oldest beyond `MAX_FILES`."""
    entry = _place(new.path)
    entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=entry.parent)
    try:
        with open(handle, "wb") as file:
            file.write(os.fsencode(f"{_GAP.join(new)}\n"))
        os.replace(name, entry)
    except OSError:
        os.unlink(name)
        raise
    entries = sorted(entry.parent.iterdir(), key=_age)
    for old in entries[MAX_FILES:]:
        with contextlib.suppress(OSError):  # another process has removed it
            old.unlink()


def _age(entry: Path) -> float:
    try:
        return -entry.stat().st_mtime
    except OSError:
        return 0.0
