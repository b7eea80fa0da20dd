"""Shows classes, functions and values as text in messages and reports."""

from __future__ import annotations

from types import FunctionType

from lingo.config.base.types import is_params
from lingo.config.node.tree import Value
from lingo.config.roots import roots as roots_


def label(named: type | FunctionType) -> str:
    """Returns `Class` for a class of lingo or tasks, and `file.py:name` for any other object."""
    if isinstance(named, type) and named.__module__.partition(".")[0] in ("lingo", "tasks"):
        return named.__qualname__
    file = roots_.source_file(named)
    return f"{file.name if file else named.__module__}:{named.__qualname__}"


def value_text(value: Value) -> str:
    """Returns a value as Python prints it, with the names of Params' classes and of functions."""
    if is_params(value):
        return label(value.cls)
    if isinstance(value, FunctionType):
        return label(value)
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(value_text, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {value_text(v)}" for k, v in value.items()) + "}"
    return repr(value)
