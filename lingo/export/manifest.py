"""export.json: what an exported model is, and the size and digest of each of its files.

experiment, step, weights, digests      the run that it is of
format, quantize, signatures            the programs: inputs and outputs as [shape, dtype]
check, evaluation                       how much they differ from the run
files                                   path -> {"size", "sha256"}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lingo.checkpoints.manifest import seal_file
from lingo.config.params import ParamError
from lingo.export.check import ExportError
from lingo.storage.files import StorageError, describe_os_error, sync

MANIFEST = "export.json"


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes the manifest of the files in a folder, and waits until all is on the disk."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): seal_file(path) for path in paths}
    text = json.dumps({**content, "files": files}, indent=1)
    (folder / MANIFEST).write_text(f"{text}\n")
    sync(folder / MANIFEST)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of an export.

    Raises ParamError if the folder has no manifest, or one without files, StorageError if it cannot
    be read.
    """
    try:
        content = json.loads((folder / MANIFEST).read_text())
        content["files"] = {
            name: {"size": entry["size"], "sha256": entry["sha256"]}
            for name, entry in content["files"].items()
        }
    except (
        FileNotFoundError,
        NotADirectoryError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise ParamError(
            f"{folder} is not an export: it has no {MANIFEST} of the form that lingo writes"
        ) from error
    except OSError as error:
        reason = describe_os_error(error)
        raise StorageError(f"cannot read {folder / MANIFEST}: {reason}.") from error
    return content


def verify_export(folder: Path) -> dict[str, Any]:
    """Returns the manifest of an export whose files are all as they were written.

    Files that it does not name, such as other versions, are not looked at. Raises as
    `read_manifest` does, and ExportError with the names of files that are missing or differ.
    """
    content = read_manifest(folder)
    wrong = [name for name, seal in content["files"].items() if not _is_sealed(folder / name, seal)]
    if wrong:
        raise ExportError(f"{folder} is not as it was exported: {', '.join(wrong)}")
    return content


def _is_sealed(path: Path, seal: Mapping[str, Any]) -> bool:
    return path.is_file() and seal_file(path) == seal
