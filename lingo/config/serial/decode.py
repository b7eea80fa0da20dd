"""JSON as parameter values: exactly what `encode` wrote, and no more than is expected."""
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any, NamedTuple, TypeAlias

from fiddle import history

from lingo.config.node.copying import History, detached
from lingo.config.node.field import Field, unknown_field
from lingo.config.node.tree import nodes
from lingo.config.params import Configurable, ParamError, Params, fields, prototype
from lingo.config.serial.encode import CLASS, DICT, MAX_DEPTH, TUPLE

MAX_BYTES = 16 * 2**20
MAX_VALUES = 500_000

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_DEEP = (dict, list)
_NEW_VALUE = history.ChangeKind.NEW_VALUE  # looked up once: members of an enum are slow to read


def parsed(content: str | bytes) -> tuple[Any, list[Any]]:
    """Returns the JSON, and the name of every class in it.

    Raises:
        ParamError: for what is no JSON, holds too much, a name twice, or a number that is
            not finite.
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
    except ValueError:  # of int(), which reads no more than 4300 digits
        raise ParamError("it holds a number with too many digits") from None


def check_size(content: str | bytes) -> None:
    """Raises ParamError for JSON that is too large to be read."""
    if len(content) > MAX_BYTES:
        raise ParamError(f"it is larger than {MAX_BYTES >> 20} MiB")
    commas = content.count(b",") if isinstance(content, bytes) else content.count(",")
    if commas > MAX_VALUES:
        raise ParamError(f"it holds more than {MAX_VALUES} values")


def _first_twin(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    return next(name for name, _ in pairs if name in seen or seen.add(name))


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ParamError(f"{text:.20} is no finite number")
    return number


_Where: TypeAlias = tuple[Any, str | int] | None
"""A path, innermost first: (what is around, field or key)."""


class _Form(NamedTuple):
    """What all Params of a class have in common, looked up once.

    Attributes:
        cls: the class.
        fields: its fields, by name.
        state: of Params without a value.
        templates: by field, a default that each has a copy of, and how many Params are in it.
    """

    cls: type[Configurable]
    fields: dict[str, Field]
    state: dict[str, Any]
    templates: dict[str, tuple[Any, int]]


def _form(cls: type[Configurable]) -> _Form:
    blank = prototype(cls)
    templates = {name: (value, len(nodes(value))) for name, value in blank.__arguments__.items()}
    return _Form(cls, fields(cls), vars(blank), templates)


class Decoder:
    """Decodes JSON, from classes that have been checked.

    Args:
        classes: by the names they have there.
        location: where the JSON came from, for histories.
        max_params: how many Params it may stand for, those in default templates included.
    """

    def __init__(
        self, classes: dict[str, type[Configurable]], location: history.Location, max_params: int
    ) -> None:
        self._location, self._max_params = location, max_params
        self._forms = {name: _form(cls) for name, cls in classes.items()}
        self._count = 0

    def decode(self, value: Json, where: _Where = None, depth: int = 0) -> Any:
        """Returns the parameter value that JSON stands for."""
        if depth > MAX_DEPTH:
            raise ParamError(f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(value, list):
            return [
                self.decode(inner, (where, i), depth + 1) if type(inner) in _DEEP else inner
                for i, inner in enumerate(value)
            ]
        if not isinstance(value, dict):
            return value
        name: Any = value.pop(CLASS, None)
        if name is not None:
            return self._params(self._forms[name], value, where, depth)
        if any(key.startswith(CLASS) for key in value):
            return self._marked(value, where, depth)
        for key, inner in value.items():
            if type(inner) in _DEEP:
                value[key] = self.decode(inner, (where, key), depth + 1)
        return value

    def _params(self, form: _Form, values: dict[str, Any], where: _Where, depth: int) -> Params:
        """Returns Params as they were saved: faster than setting one field after the other.

        Args:
            form: what is the same in all of their class.
            values: JSON of the fields that were set, by name; becomes part of the Params.
            where: the path to them.
            depth: how deep they stand.
        """
        self._count += 1
        entries = History()
        for name, value in values.items():
            if type(value) in _DEEP:
                value = self.decode(value, (where, name), depth + 1)
            try:
                if name not in form.fields:
                    raise unknown_field(form.cls, name)
                values[name] = value = form.fields[name].fit(value)
            except ParamError as error:
                raise ParamError(f"{_path(where)}: {error}" if where else str(error)) from None
            entries[name] = [_entry(name, value, self._location)]
        for name, (template, size) in form.templates.items():
            if name not in values:
                self._count += size
                values[name] = detached(template)
        if self._count > self._max_params:  # a small file may stand for much
            raise ParamError(f"it holds more than {self._max_params} Params")
        node = object.__new__(Params)
        state = vars(node)
        state.update(form.state)
        state["__arguments__"], state["__argument_history__"] = values, entries
        state["__argument_tags__"] = defaultdict(set)
        return node

    def _marked(self, value: dict[str, Json], where: _Where, depth: int) -> Any:
        """Returns a tuple, or a dict some key of which looks like a mark."""
        (key, inner), *others = value.items()
        if others or key not in (TUPLE, DICT) or not isinstance(inner, list):
            raise ParamError(f"{_path(where)}: {key!r:.80} means nothing here")
        values = self.decode(inner, where, depth)
        if key == TUPLE:
            return tuple(values)
        if not all(isinstance(p, list) and len(p) == 2 and isinstance(p[0], str) for p in inner):
            raise ParamError(f"{_path(where)}: {DICT!r} holds pairs of a key and a value")
        return dict(values)


def _path(where: _Where) -> str:
    parts: list[str] = []
    while where:
        where, part = where
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part}")
    return "".join(reversed(parts)).removeprefix(".")


def _entry(name: str, value: Any, location: history.Location) -> history.HistoryEntry:
    """Returns a history entry; filling it past its frozen constructor takes a fifth of the time."""
    entry = object.__new__(history.HistoryEntry)
    state = vars(entry)
    state["sequence_id"], state["param_name"], state["new_value"] = 0, name, value
    state["kind"], state["location"] = _NEW_VALUE, location
    return entry
