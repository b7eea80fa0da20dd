"""Texts of classes and values for messages and reports."""

from __future__ import annotations

from lingo.config.node.tree import Value
from lingo.config.roots import roots as roots_
from lingo.config.types import is_params


def label(cls: type) -> str:
    """Returns a class's name; before it that of its file, if it is not of lingo or tasks."""
    if cls.__module__.partition(".")[0] in ("lingo", "tasks"):
        return cls.__qualname__
    file = roots_.source_file(cls)
    return f"{file.name if file else cls.__module__}:{cls.__qualname__}"


def value_text(value: Value) -> str:
    """Returns a value as Python prints it, floats exactly; Params are printed as their class."""
    if is_params(value):
        return label(value.cls)
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(value_text, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {value_text(v)}" for k, v in value.items()) + "}"
    return repr(value)
