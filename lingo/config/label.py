"""Classes and values as texts for people."""

from __future__ import annotations

from lingo.config.node.tree import Value
from lingo.config.roots import roots as roots_
from lingo.config.types import is_params


def label(cls: type) -> str:
    """Returns the name of a class in texts for people.

    Classes of lingo and tasks go by their name. Others may be called like one of these, being a
    copy of it more often than not, so the name of their file stands before.
    """
    if cls.__module__.partition(".")[0] in ("lingo", "tasks"):
        return cls.__qualname__
    file = roots_.source_file(cls)
    return f"{file.name if file else cls.__module__}:{cls.__qualname__}"


def value_text(value: Value) -> str:
    """Returns a value as Python writes it, floats exactly, Params by their class."""
    if is_params(value):
        return label(value.cls)
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(value_text, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {value_text(v)}" for k, v in value.items()) + "}"
    return repr(value)
