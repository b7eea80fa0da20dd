"""Finds the versions of installed packages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from importlib import metadata


def find_versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns package -> version; packages that are not installed are left out."""
    found = dict[str, str]()
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
