"""Decodes JSON to parameter values: exactly what `encode` wrote, within limits of size."""

from __future__ import annotations

import json
import math
from typing import Any, TypeAlias

from lingo.config.node.tree import field_path, nodes
from lingo.config.params import Configurable, ParamError, Params
from lingo.config.serial.encode import CLASS, DICT, MAX_DEPTH, TUPLE
from lingo.config.types import SCALARS

MAX_BYTES = 16 * 2**20

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def parse(content: str | bytes) -> tuple[Any, list[Any]]:
    """Returns the JSON value, and the name of every class in it.

    Raises:
        ParamError: if it is not JSON, is too large, or has a key twice or a number that is not
            finite.
    """
    check_size(content)
    names: list[Any] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ParamError(f"{_first_twin(pairs)!r:.80} stands twice in one object")
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
        raise ParamError(f"it is no text: byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ParamError(
            f"it is no JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except ParamError:
        raise
    except ValueError:  # from int(), which reads at most 4300 digits
        raise ParamError("it holds a number with too many digits") from None


def check_size(content: str | bytes) -> None:
    """Raises ParamError for JSON that is too large to be read."""
    if len(content) > MAX_BYTES:
        raise ParamError(f"it is larger than {MAX_BYTES >> 20} MiB")


def _first_twin(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    return next(name for name, _ in pairs if name in seen or seen.add(name))


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ParamError(f"{text:.20} is no finite number")
    return number


class Decoder:
    """Turns JSON into parameter values of classes that were checked.

    Args:
        classes: name in the JSON -> class.
        max_params: the largest number of Params, including those in default templates.
    """

    def __init__(self, classes: dict[str, type[Configurable]], max_params: int) -> None:
        self._classes, self._max_params, self._count = classes, max_params, 0

    def decode(self, value: Json, path: str = "", depth: int = 0) -> Any:
        """Returns the parameter value of a JSON value."""
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

    def _params(self, value: dict[str, Json], path: str, depth: int) -> Params:
        values: dict[str, Any] = {}
        for name, inner in value.items():
            if type(inner) not in SCALARS:
                inner = self.decode(inner, field_path(path, name), depth + 1)
            values[name] = inner
        cls = self._classes[values.pop(CLASS)]
        try:
            node = Params(cls, **values)
        except ParamError as error:
            raise ParamError(f"{path}: {error}" if path else str(error)) from None
        defaults = [v for name, v in node.__arguments__.items() if name not in values]
        self._count += 1 + sum(len(nodes(default)) for default in defaults)
        if self._count > self._max_params:  # a small file may expand to many
            raise ParamError(f"it holds more than {self._max_params} Params")
        return node

    def _decode_marked(self, value: dict[str, Json], path: str, depth: int) -> Any:
        """Returns a tuple, or a dict with a key that looks like a mark."""
        (key, inner), *others = value.items()
        if others or key not in (TUPLE, DICT) or not isinstance(inner, list):
            raise ParamError(f"{path}: {key!r:.80} means nothing here")
        values = self.decode(inner, path, depth)
        if key == TUPLE:
            return tuple(values)
        if not all(isinstance(p, list) and len(p) == 2 and isinstance(p[0], str) for p in inner):
            raise ParamError(f"{path}: {DICT!r} holds pairs of a key and a value")
        return dict(values)
