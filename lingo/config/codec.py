"""Converts parameter values to JSON and back.

Only fields that were set are written. Classes and functions are written as names. The decoder
restores exactly what the encoder wrote, and refuses JSON that is too large.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeAlias, cast

from lingo.config.base.types import SCALARS
from lingo.config.node.tree import Value, field_path, nodes, same
from lingo.config.params import ParamError, Params, fields
from lingo.config.trust import Named

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 64
MAX_PARAMS = 50_000  # including Params in default templates

CLASS, TUPLE, DICT = "@", "@tuple", "@dict"
"""JSON keys that mark an object as something else.

CLASS: Params or a function. TUPLE: a tuple. DICT: a dict with a key that begins with "@".
"""

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Encoder:
    """Converts parameter values into values that `json` can write."""

    def __init__(self, name: Callable[[Named], str]) -> None:
        """`name` is a function, such as `Namer.name`, that returns a class's or function's name."""
        self._name = functools.cache(name)  # naming reads files
        self._count = 0

    def encode(self, value: Value, path: str = "", depth: int = 1) -> Any:
        if type(value) in SCALARS:
            return value
        if depth >= MAX_DEPTH:
            raise ParamError(
                f"{path or 'this'} is more than {MAX_DEPTH} deep: too deep to be saved"
            )
        if isinstance(value, Params):
            return self._params(value, path, depth + 1)
        if isinstance(value, FunctionType):
            return {CLASS: self._name(value)}
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
        if self._count > MAX_PARAMS:
            raise ParamError(f"it holds more than {MAX_PARAMS} Params: too many to be saved")


def parse(content: str | bytes) -> tuple[Any, list[Any]]:
    """Returns the JSON value and the names of all classes and functions in it.

    Raises ParamError for text that is not JSON, is too large or too deep, has a key twice in one
    object, or has a number that is not finite.
    """
    check_size(content)
    names: list[Any] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            ((twin, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise ParamError(f"{twin!r:.80} is twice in one object")
        if CLASS in found:
            names.append(found[CLASS])
        return found

    try:
        text = content.decode() if isinstance(content, bytes) else content
        return json.loads(
            text, object_pairs_hook=collect, parse_float=_finite, parse_constant=_finite
        ), names
    except RecursionError:
        raise ParamError(f"it is nested more than {MAX_DEPTH} deep") from None
    except UnicodeDecodeError as error:
        raise ParamError(f"it is not text: byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ParamError(
            f"it is not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except ParamError:
        raise
    except ValueError:  # from int(), which reads at most 4300 digits
        raise ParamError("it holds a number with too many digits") from None


def check_size(content: str | bytes) -> None:
    """Raises ParamError for JSON that is too large to be read."""
    if len(content) > MAX_BYTES:
        raise ParamError(f"it is larger than {MAX_BYTES >> 20} MiB")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ParamError(f"{text:.20} is not a finite number")
    return number


class Decoder:
    """Converts JSON into parameter values, with classes and functions that a caller has checked."""

    def __init__(self, named: dict[str, Named]) -> None:
        self._named = named  # name in the JSON -> class or function
        self._count = 0

    def decode(self, value: Json, path: str = "", depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise ParamError(f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(value, list):
            return [self.decode(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if CLASS in value:
            return self._params(value, path, depth)
        if any(key.startswith(CLASS) for key in value):
            return self._decode_marked(value, path, depth)
        return {k: self.decode(v, field_path(path, k), depth + 1) for k, v in value.items()}

    def _params(self, value: dict[str, Json], path: str, depth: int) -> Params | FunctionType:
        values: dict[str, Any] = {}
        for name, inner in value.items():
            if type(inner) not in SCALARS:
                inner = self.decode(inner, field_path(path, name), depth + 1)
            values[name] = inner
        cls = self._named[values.pop(CLASS)]
        if isinstance(cls, FunctionType):
            return cls
        try:
            node = Params(cls, **values)
        except ParamError as error:
            raise ParamError(f"{path}: {error}" if path else str(error)) from None
        defaults = [v for name, v in node.__arguments__.items() if name not in values]
        self._count += 1 + sum(len(nodes(default)) for default in defaults)
        if self._count > MAX_PARAMS:  # a small file may expand to many
            raise ParamError(f"it holds more than {MAX_PARAMS} Params")
        return node

    def _decode_marked(self, value: dict[str, Json], path: str, depth: int) -> Any:
        """Returns a tuple from {"@tuple": [...]}, or a dict from {"@dict": [[key, value], ...]}."""
        (key, inner), *others = value.items()
        if others or key not in (TUPLE, DICT) or not isinstance(inner, list):
            raise ParamError(f"{path}: {key!r:.80} means nothing here")
        values = self.decode(inner, path, depth)
        if key == TUPLE:
            return tuple(values)
        if not all(isinstance(p, list) and len(p) == 2 and isinstance(p[0], str) for p in inner):
            raise ParamError(f"{path}: {DICT!r} holds pairs of a key and a value")
        return dict(values)
