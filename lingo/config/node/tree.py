"""Walks trees of parameters: Params, containers, and the values inside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any, TypeAlias

from lingo.config.base.types import SCALARS, Node, is_params

Leaf: TypeAlias = bool | int | float | str | FunctionType | None
Value: TypeAlias = "Leaf | list[Value] | tuple[Value, ...] | dict[str, Value] | Node"
"""The type of a parameter's value."""


def walk(value: Value, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (path, Params) for every Params inside a value, parents first."""
    if is_params(value):
        yield path, value
    for part, child in items(value):
        if type(child) not in SCALARS:
            yield from walk(child, f"{path}{part}" if path else part.removeprefix("."))


def nodes(value: Value) -> list[Any]:
    """Returns every Params inside a value, parents first; shared Params appear several times."""
    found: list[Any] = []
    waiting = [value]
    while waiting:
        value = waiting.pop()
        children: Iterable[Value] = ()
        if is_params(value):
            found.append(value)
            children = value.__arguments__.values()
        elif isinstance(value, dict):
            children = value.values()
        elif isinstance(value, (list, tuple)):
            children = value
        waiting += [v for v in children if type(v) not in SCALARS][::-1]
    return found


def functions(value: Value) -> list[FunctionType]:
    """Returns the functions that fields of Params hold, for all Params inside a value."""
    values = (v for node in nodes(value) for v in node.__arguments__.values())
    return [v for v in values if isinstance(v, FunctionType)]


def items(value: Value) -> Iterable[tuple[str, Value]]:
    """Returns (step of a path, child) for each direct child of Params or a container."""
    if is_params(value):
        return [(f".{name}", child) for name, child in value.__arguments__.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{i}]", child) for i, child in enumerate(value)]
    if isinstance(value, dict):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    return ()


def field_path(path: str, name: str) -> str:
    """Returns the path of a field of the Params at `path`; the root's path is ""."""
    return f"{path}.{name}" if path else name


def same(a: Value, b: Value) -> bool:
    """Returns whether two values are equal and of the same types, with the same fields set."""
    if is_params(a):
        if not is_params(b) or a.cls is not b.cls:
            return False
        a, b = a.__arguments__, b.__arguments__
    if isinstance(a, dict):
        return (
            isinstance(b, dict)
            and a.keys() == b.keys()
            and all(same(v, b[k]) for k, v in a.items())
        )
    if isinstance(a, (list, tuple)):
        kind = list if isinstance(a, list) else tuple
        return isinstance(b, kind) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)
