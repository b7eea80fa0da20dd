"""The folder of an export, which appears when it is complete."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lingo.config.params import ParamError
from lingo.storage.files import explain_write_errors


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields a new folder, which gets its name when it is complete; an error leaves nothing."""
    if os.path.lexists(folder):
        raise ParamError(f"{folder} exists: name another folder, or remove it")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    with explain_write_errors(folder):
        partial.mkdir()
        try:
            yield partial
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
