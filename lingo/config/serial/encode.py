"""Parameter values as JSON: only the fields that were set, each class by its name."""
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from lingo.config.node.tree import Value, field_path, nodes, same
from lingo.config.params import Configurable, ParamError, Params, fields
from lingo.config.serial.trust import Namer

MAX_DEPTH = 64

CLASS, TUPLE, DICT = "@", "@tuple", "@dict"
"""The keys that mark Params, a tuple, and a dict with a key that looks like a mark."""


class Encoder:
    """Writes values.

    Args:
        namer: names the classes.
        max_params: how many Params it may write, those in default templates included.
    """

    def __init__(self, namer: Namer, max_params: int) -> None:
        self._namer, self._max_params = namer, max_params
        self._marks: dict[type, str] = {}
        self._count = 0

    def text(self, value: Value, margin: str, path: str = "") -> str:
        """Returns a value as JSON, where `margin` starts a line."""
        scalar = _SCALARS.get(type(value))
        if scalar:
            return scalar(value)
        if len(margin) > MAX_DEPTH:
            raise ParamError(
                f"{path or 'this'} stands more than {MAX_DEPTH} deep: too deep to be saved"
            )
        if isinstance(value, Params):
            return braced("{}", self._fields(value, margin + " ", path), margin)
        if isinstance(value, list):
            inner = margin + " "
            return braced(
                "[]", [self.text(v, inner, f"{path}[{i}]") for i, v in enumerate(value)], margin
            )
        if isinstance(value, tuple):
            return f'{{"{TUPLE}": {self.text(list(value), margin, path)}}}'
        return self._dict(cast("dict[str, Value]", value), margin, path)

    def _dict(self, value: dict[str, Value], margin: str, path: str) -> str:
        if any(key.startswith(CLASS) for key in value):
            pairs: list[Value] = [[key, inner] for key, inner in value.items()]
            return f'{{"{DICT}": {self.text(pairs, margin, path)}}}'
        texts = [
            f"{quoted(key)}: {self.text(inner, margin + ' ', f'{path}[{key!r}]')}"
            for key, inner in value.items()
        ]
        return braced("{}", texts, margin)

    def _fields(self, node: Params, margin: str, path: str) -> list[str]:
        self._counted(1)
        cls, given, arguments = node.cls, node.__argument_history__, node.__arguments__
        texts = [self._marks.get(cls) or self._mark(cls)]
        for name, field in fields(cls).items():
            if name not in arguments:
                continue
            value = arguments[name]
            if not given.get(name) and same(value, field.default):
                self._counted(len(nodes(value)))
                continue
            scalar = _SCALARS.get(type(value))
            if scalar:
                texts.append(f'"{name}": {scalar(value)}')
                continue
            if isinstance(value, (list, tuple, dict)):
                value = field.fit(value)  # it may have changed since it was set
            texts.append(f'"{name}": {self.text(value, margin, field_path(path, name))}')
        return texts

    def _counted(self, number: int) -> None:
        self._count += number
        if self._count > self._max_params:
            raise ParamError(f"it holds more than {self._max_params} Params: too many to be saved")

    def _mark(self, cls: type[Configurable]) -> str:
        """Returns what says in JSON which class an object is of."""
        mark = self._marks[cls] = f'"{CLASS}": {quoted(self._namer.name(cls))}'
        return mark


quoted: Callable[[str], str] = json.encoder.encode_basestring_ascii
"""Returns a text as JSON."""

_SCALARS: dict[type, Callable[[Any], str]] = {
    str: quoted,
    int: int.__repr__,
    float: float.__repr__,
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "null",
}


def braced(brackets: str, texts: list[str], margin: str) -> str:
    """Returns texts between brackets, a line each."""
    if not texts:
        return brackets
    return f"{brackets[0]}{margin} {f',{margin} '.join(texts)}{margin}{brackets[1]}"
