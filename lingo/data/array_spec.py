"""Shapes and dtypes of arrays: what is known of a batch before any data is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

ArraySpec: TypeAlias = tuple[tuple[int, ...], str]
"""Shape and dtype."""

Specs: TypeAlias = Mapping[str, ArraySpec]
"""Name -> (shape, dtype), as of the arrays of a batch."""
