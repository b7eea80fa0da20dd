"""Encodes parameter values as JSON: only the fields that were set, each class by its name."""
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import functools
from typing import Any, cast

from lingo.config.node.tree import Value, field_path, nodes, same
from lingo.config.params import ParamError, Params, fields
from lingo.config.serial.trust import Namer
from lingo.config.types import SCALARS

MAX_DEPTH = 64

CLASS, TUPLE, DICT = "@", "@tuple", "@dict"
"""The keys that mark Params, a tuple, and a dict with a key that looks like a mark."""


class Encoder:
    """Turns parameter values into values for `json`.

    Args:
        namer: names the classes.
        max_params: the largest number of Params, including those in default templates.
    """

    def __init__(self, namer: Namer, max_params: int) -> None:
        self._name = functools.cache(namer.name)  # naming reads files
        self._max_params, self._count = max_params, 0

    def encode(self, value: Value, path: str = "", depth: int = 1) -> Any:
        """Returns the JSON of a value."""
        if type(value) in SCALARS:
            return value
        if depth >= MAX_DEPTH:
            raise ParamError(
                f"{path or 'this'} stands more than {MAX_DEPTH} deep: too deep to be saved"
            )
        if isinstance(value, Params):
            return self._params(value, path, depth + 1)
        if isinstance(value, list):
            return [self.encode(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
        if isinstance(value, tuple):
            return {TUPLE: self.encode(list(value), path, depth)}
        inner = cast("dict[str, Value]", value)
        if any(key.startswith(CLASS) for key in inner):
            pairs: list[Value] = [[key, v] for key, v in inner.items()]
            return {DICT: self.encode(pairs, path, depth)}
        return {k: self.encode(v, f"{path}[{k!r}]", depth + 1) for k, v in inner.items()}

    def _params(self, node: Params, path: str, depth: int) -> dict[str, Any]:
        self._add_to_count(1)
        encoded: dict[str, Any] = {CLASS: self._name(node.cls)}
        for name, field in fields(node.cls).items():
            if name not in node.__arguments__:
                continue
            value = node.__arguments__[name]
            if not node.__argument_history__.get(name) and same(value, field.default):
                self._add_to_count(len(nodes(value)))
                continue
            if type(value) not in SCALARS:
                value = field.fit(value)  # a container may have been changed since it was set
                value = self.encode(value, field_path(path, name), depth)
            encoded[name] = value
        return encoded

    def _add_to_count(self, number: int) -> None:
        self._count += number
        if self._count > self._max_params:
            raise ParamError(f"it holds more than {self._max_params} Params: too many to be saved")
