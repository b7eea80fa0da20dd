"""Addresses of runs in buckets, and their copies in a folder of this machine.

    s3://bucket/path/run    ->    ~/.cache/lingo/buckets/s3/bucket/path/run

The path names the address, so a copy, and a folder below one, need no record of where they belong.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lingo.config.base.errors import ParamError

FOLDER = "LINGO_BUCKET_CACHE"
"""The environment variable that names another folder for the copies."""

SCHEMES = ("gs", "s3", "memory")  # memory: objects of this process, for tests

_ADDRESS = re.compile(rf"({'|'.join(SCHEMES)}):/{{1,2}}(.*)", re.DOTALL)
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=@+-]*")


def is_address(path: str | Path) -> bool:
    """Returns whether a path is the address of a bucket's folder; `Path` makes one slash of two."""
    return _ADDRESS.match(str(path)) is not None


def local_copy(address: str | Path) -> Path:
    """Returns the path of an address's local copy, which need not exist.

    Raises ParamError for an address whose names cannot be names of folders.
    """
    scheme, parts = _split(address)
    if not is_valid(address):
        raise ParamError(
            f"{str(address)!r:.200} is not the address of a run: write gs://bucket/folder or"
            " s3://bucket/folder, whose names have letters, digits, '_', '.', '=', '@', '+', '-',"
            " and begin with a letter, a digit or '_'"
        )
    return _folder() / scheme / Path(*parts)


def is_valid(address: str | Path) -> bool:
    """Returns whether all names in an address can be names of folders, so that it has a copy."""
    return all(map(_PART.fullmatch, _split(address)[1]))


def _split(address: str | Path) -> tuple[str, list[str]]:
    """Returns the scheme and the names of an address; [""] as names for any other text."""
    match = _ADDRESS.fullmatch(str(address))
    scheme, path = match.groups() if match else ("", "")
    return scheme, path.rstrip("/").split("/")


def address_of(path: str | Path) -> str | None:
    """Returns the address of a local copy, or None for any other path."""
    try:
        parts = Path(os.path.realpath(path)).relative_to(_folder()).parts
    except ValueError:
        return None
    return f"{parts[0]}://{'/'.join(parts[1:])}" if len(parts) > 1 else None


def _folder() -> Path:
    """Returns the folder of all copies, an absolute path without links."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    folder = os.environ.get(FOLDER) or os.path.join(home, "lingo", "buckets")
    return Path(os.path.realpath(os.path.expanduser(folder)))
