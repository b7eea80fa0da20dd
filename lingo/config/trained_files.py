"""Remembers the Python files that this user has trained with `--exp`, and their digests.

Each file has an entry, a file of one line: the digest of the content, and the path.

    ~/.config/lingo/trained_files/<digest of the path>      <digest of the content>  <path>

While such a file, and the files that it imports from its own directory, are unchanged, a run's
configuration may name its classes without `--trust`. If an entry cannot be read or written, the
only effect is that `--trust` is needed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from lingo.config.base import regular_file
from lingo.config.base.errors import ParamError
from lingo.config.base.hints import hint
from lingo.config.source_files import SourceFile, find_imports

MAX_FILES = 1000  # number of entries; the least recently trained files beyond it are forgotten

_MAX_BYTES = 2**13  # maximum size of an entry


def remember(files: Iterable[SourceFile]) -> None:
    """Writes the entries of files with their current digests; raises OSError if that fails."""
    for file in files:
        _write(_place(file.path), _line(file))


def is_trusted(file: Path, trust: Iterable[str | os.PathLike[str]], module: str = "") -> bool:
    """Returns whether a file may be imported, under its stem or as `module`.

    This is so if the file is in `trust`, or if the file and all files that its import runs were
    trained and are unchanged.
    """
    path = Path(os.path.realpath(file))
    if path in [Path(os.path.realpath(os.fspath(trusted))) for trusted in trust]:
        return True
    return _read(path) is not None and not _changed_files(path, module)


def explain_distrust(file: Path, module: str = "") -> str:
    """Returns the end of an error's sentence: why a file is not trusted, and what to do."""
    way = f"To run it: {hint('trust', [str(file)])}"
    if not os.path.exists(file):
        way += " It is no longer there: name its new place."
    elif _read(path := Path(os.path.realpath(file))) is not None:
        changed = ", ".join(_changed_files(path, module))
        return f"which was trained, but has changed since then: {changed}. {way}"
    return f"a file outside the trusted places. {way}"


def _changed_files(file: Path, module: str) -> list[str]:
    """Returns the paths, among a file and its imports, that are not as they were when trained."""
    try:
        files = find_imports(file, module)
    except ParamError:
        return [str(file)]
    return [found.path for found in files if _read(Path(found.path)) != _line(found)]


def _folder() -> Path:
    """Returns the directory with all entries; raises OSError if the user has no home."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(home):  # a relative path counts as not set, by the XDG standard
        home = os.path.expanduser(os.path.join("~", ".config"))
    if not os.path.isabs(home):  # not the working directory, in which anybody may have written
        raise OSError(errno.ENOENT, "there is no home directory")
    return Path(home, "lingo", "trained_files")


def _place(path: str) -> Path:
    return _folder() / hashlib.sha256(os.fsencode(path)).hexdigest()


def _line(file: SourceFile) -> bytes:
    return os.fsencode(f"{file.sha256}  {file.path}\n")


def _read(file: Path) -> bytes | None:
    """Returns the content of a file's entry, or None if the entry cannot be read."""
    try:
        return regular_file.read(_place(str(file)), max_bytes=_MAX_BYTES)
    except OSError:
        return None


def _write(entry: Path, line: bytes) -> None:
    """Writes an entry, whole or not at all, and removes the oldest entries beyond `MAX_FILES`."""
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
