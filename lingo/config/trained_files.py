"""The Python files that this user has trained with `--exp`, and their digests.

    ~/.config/lingo/trained_files/<digest of the path>      <digest of the content>  <path>

While such a file, and the files that it imports from its own directory, are unchanged, a run's
configuration may name its classes without `--trust`. An entry that cannot be read or written has no
other effect than that `--trust` is needed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path

from lingo.config.base import regular_file
from lingo.config.base.errors import ParamError
from lingo.config.source_files import SourceFile, find_imports

MAX_FILES = 1000  # beyond that, the least recently trained files are forgotten

_MAX_BYTES = 2**13  # of an entry


def remember(files: Iterable[SourceFile]) -> None:
    """Remembers files as they are now; raises OSError if that cannot be written."""
    for file in files:
        _write(_place(file.path), _line(file))


def is_trusted(file: Path, trust: Iterable[str | os.PathLike[str]], module: str = "") -> bool:
    """Returns whether a file may be imported, under its stem or as `module`.

    It is in `trust`, or it and all files that its import runs were trained and are unchanged.
    """
    path = Path(os.path.realpath(file))
    if path in [Path(os.path.realpath(os.fspath(trusted))) for trusted in trust]:
        return True
    return _read(path) is not None and not _changed_files(path, module)


def explain_distrust(file: Path, module: str = "") -> str:
    """Returns why a file is not trusted, and what to do."""
    hint = f"To run it: --trust={shlex.quote(str(file))}"
    if not os.path.exists(file):
        hint += " It is no longer there: name its new place."
    elif _read(path := Path(os.path.realpath(file))) is not None:
        changed = ", ".join(_changed_files(path, module))
        return f"which was trained, but has changed since then: {changed}. {hint}"
    return f"a file outside the trusted places. {hint}"


def _changed_files(file: Path, module: str) -> list[str]:
    """Returns the files of an import that have changed since they were trained."""
    try:
        files = find_imports(file, module)
    except ParamError:
        return [str(file)]
    return [found.path for found in files if _read(Path(found.path)) != _line(found)]


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


def _line(file: SourceFile) -> bytes:
    return os.fsencode(f"{file.sha256}  {file.path}\n")


def _read(file: Path) -> bytes | None:
    """Returns the entry of a file, or None if it cannot be read."""
    try:
        return regular_file.read(_place(str(file)), max_bytes=_MAX_BYTES)
    except OSError:
        return None


def _write(entry: Path, line: bytes) -> None:
    """Writes an entry, whole or not at all, and removes the oldest beyond `MAX_FILES`."""
    entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=entry.parent)
    try:
        with open(handle, "wb") as file:
            file.write(line)
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
