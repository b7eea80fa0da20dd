"""Types for the shapes and dtypes of a batch's arrays, which are known before data is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

ArraySpec: TypeAlias = tuple[tuple[int, ...], str]
"""Shape and dtype."""

Specs: TypeAlias = Mapping[str, ArraySpec]
"""Name -> (shape, dtype) of each array of a batch."""
