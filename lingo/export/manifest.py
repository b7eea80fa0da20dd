"""Reads and writes export.json, which describes an exported model and has digests of its files.

experiment, step, weights, digests      the trained model that was exported
class_names                             the names of its classes, by label
format, quantize, signatures            the programs, with inputs and outputs as [shape, dtype]
check, evaluation                       how much the programs' outputs differ from lingo's
files                                   path -> {"size", "sha256"}

The file also has a digest of its own content.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lingo.checkpoints.manifest import MAX_BYTES, parse, render, seal_file
from lingo.config.base import regular_file
from lingo.config.params import ParamError
from lingo.export.check import ExportError
from lingo.storage.files import StorageError, describe_os_error, sync

MANIFEST = "export.json"

_NO_FILE = (errno.EINVAL, errno.EISDIR, errno.ELOOP)  # `regular_file` raises EINVAL
_MAX_PART_BYTES = 255  # the longest name of a file or folder in most file systems
_VERSION = re.compile(r"[0-9]+/saved_model\.pb")


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes a manifest for all files in a folder, and waits until all of them are on the disk.

    `content` has all fields of the manifest except `files`.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): seal_file(path) for path in paths}
    (folder / MANIFEST).write_bytes(render({**content, "files": files}))
    sync(folder / MANIFEST)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of an export, after verifying the manifest's own digest.

    Raises ParamError if the folder has no manifest, or its manifest is not as lingo wrote it, and
    StorageError if the manifest cannot be read.
    """
    path = folder / MANIFEST
    try:
        content = parse(regular_file.read(path, max_bytes=MAX_BYTES))
        content["files"] = {
            _check_name(name): _check_seal(name, entry) for name, entry in content["files"].items()
        }
    except (FileNotFoundError, NotADirectoryError):
        raise ParamError(f"{folder} is not an export: it has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = str(error) if isinstance(error, ValueError) else "it lacks files with their digests"
        raise ParamError(f"{path} is not what lingo wrote: {why}") from error
    except OSError as error:
        reason = describe_os_error(error)
        if error.errno in _NO_FILE:
            raise ParamError(f"{path} is not what lingo wrote: {reason}") from error
        raise StorageError(f"cannot read {path}: {reason}.") from error
    return content


def verify_export(folder: Path) -> dict[str, Any]:
    """Returns the manifest of an export, after verifying that all files are as they were written.

    Raises the errors of `read_manifest`. Raises ExportError if files are missing, are links or have
    changed, or if the folder has a version of a SavedModel that the manifest does not name.
    """
    content = read_manifest(folder)
    files = content["files"]
    if not files:
        raise ExportError(
            f"{folder / MANIFEST} names no files: it is not the manifest of an export"
        )
    if type(content.get("step")) is not int:
        raise ParamError(f"{folder / MANIFEST} is not what lingo wrote: it has no step")
    wrong = [name for name, seal in files.items() if not _is_sealed(folder, name, seal)]
    wrong += [f"{name} (not exported)" for name in find_versions(folder) if name not in files]
    if wrong:
        raise ExportError(f"{folder} is not as it was exported: {', '.join(wrong)}")
    return content


def find_versions(folder: Path) -> list[str]:
    """Returns the sorted paths `<version>/saved_model.pb` in a folder, relative to the folder."""
    names = (path.relative_to(folder).as_posix() for path in folder.glob("*/saved_model.pb"))
    return sorted(name for name in names if _VERSION.fullmatch(name))


def find_link(folder: Path, names: Iterable[str]) -> Path | None:
    """Returns the first of the named files, or of their parent folders, that is a link.

    `names` are relative to `folder`. None: there is no link.
    """
    paths = {folder / part for name in names for part in (Path(name), *Path(name).parents)}
    return min((path for path in paths - {folder} if path.is_symlink()), default=None)


def _check_name(name: str) -> str:
    """Returns a file's name unchanged; raises ValueError if it is no path inside the folder."""
    parts = name.split("/")
    is_long = max(len(part.encode()) for part in parts) > _MAX_PART_BYTES
    if not name or name.startswith("/") or ".." in parts or "\0" in name or is_long:
        raise ValueError(f"{name!r:.80} is not the name of a file in the folder")
    return name


def _check_seal(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a manifest's size and digest of a file; raises ValueError for a wrong type."""
    size, digest = entry["size"], entry["sha256"]
    if type(size) is not int or not isinstance(digest, str):
        raise ValueError(f"{name!r:.80} has a size or digest of the wrong type")
    return {"size": size, "sha256": digest}


def _is_sealed(folder: Path, name: str, seal: Mapping[str, Any]) -> bool:
    if find_link(folder, [name]) is not None:
        return False
    return (folder / name).is_file() and seal_file(folder / name) == seal
