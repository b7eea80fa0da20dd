"""Text to values: the type of a field decides how its text is read.

int      12  1_000                     str     as it is; quotes are taken off
float    0.1  1e-3  3                  list    [1, 2]  or  1,2
bool     true  False                   dict    {train: 3, 'held out': 4}
None     none                          Params  Class  or  Class(field=value, ...)
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable
from typing import Any, Literal

from lingo.config import types
from lingo.config.node.field import REQUIRED, fields
from lingo.config.overrides.syntax import (
    Unreadable,
    is_closed,
    looks_like_class,
    partition,
    shortened,
    split,
    unquoted,
)
from lingo.config.params import suggest
from lingo.config.roots.classes import UnknownClass

_INT = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[+-]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][+-]?[0-9_]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)

Template = Callable[[str, Any], Any]
"""Turns `Class` or `Class(field=value, ...)` into Params for a field of some type."""


def read(text: str, hint: Any, template: Template) -> Any:
    """Reads a value.

    Args:
        text: what was typed.
        hint: the type that is wanted.
        template: reads the value of a field that holds Params.

    Raises:
        Unreadable: "takes int, got 'four'", to stand behind the name of the field.
        ParamError: from `template`.
    """
    try:
        return _read(text.strip(), types.alternatives(hint), template)
    except Unreadable as error:
        said = f". {error}" if str(error) else ""
        raise Unreadable(f"takes {types.describe(hint)}, got {shortened(text)}{said}") from None


# ---- one reader a type -----------------------------------------------------------------------


def _read(text: str, members: tuple[Any, ...], template: Template) -> Any:
    """Tries the members of a union, the most particular first."""
    said = ""
    lenient = str in members or Any in members
    for member in sorted(members, key=_rank):
        try:
            return _reader(member)(text, member, template)
        except Unreadable as error:
            said = said or str(error)
        except UnknownClass:
            if not lenient:
                raise
    raise Unreadable(said)


def _rank(hint: Any) -> int:
    order = (
        _read_none,
        _read_bool,
        _read_literal,
        _read_int,
        _read_float,
        _read_template,
        _read_dict,
    )
    reader = _reader(hint)
    return (
        order.index(reader)
        if reader in order
        else len(order) + (reader is not _read_sequence) + (hint is Any)
    )


def _reader(hint: Any) -> Callable[[str, Any, Template], Any]:
    origin = typing.get_origin(hint) or hint
    if origin is Literal:
        return _read_literal
    if types.is_configurable(hint) or hint is types.Params_:
        return _read_template
    return _READERS[origin]


def _read_none(text: str, hint: Any, template: Template) -> None:
    del hint, template
    if text.lower() != "none":
        raise Unreadable


def _read_bool(text: str, hint: Any, template: Template) -> bool:
    del hint, template
    if text.lower() not in ("true", "false"):
        raise Unreadable("Write true or false.")
    return text.lower() == "true"


def _read_literal(text: str, hint: Any, template: Template) -> Any:
    del template
    choices = typing.get_args(hint)
    for choice in choices:
        if (
            choice == unquoted(text)
            if isinstance(choice, str)
            else text.lower() == str(choice).lower()
        ):
            return choice
    raise Unreadable(suggest(unquoted(text), [c for c in choices if isinstance(c, str)]).strip())


def _read_int(text: str, hint: Any, template: Template) -> int:
    del hint, template
    if _INT.fullmatch(text) and len(text) < 4000:
        return int(text)
    if (
        _FLOAT.fullmatch(text)
        and (value := _float(text)) is not None
        and value.is_integer()
        and abs(value) < 2**53
    ):
        raise Unreadable(f"Write {int(value)}.")
    raise Unreadable


def _read_float(text: str, hint: Any, template: Template) -> float:
    del hint, template
    if _NOT_FINITE.fullmatch(text):
        raise Unreadable(types.NOT_FINITE)
    if not _FLOAT.fullmatch(text) or (value := _float(text)) is None:
        raise Unreadable
    if not math.isfinite(value):
        raise Unreadable(types.NOT_FINITE)
    return value


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # misplaced underscores
        return None


def _read_template(text: str, hint: Any, template: Template) -> Any:
    form = _of_a_path(hint)
    if text.lower() == "none" or not looks_like_class(text):
        raise Unreadable(f"Write {form or 'Class or Class(field=value, ...)'}.")
    try:
        return template(text, hint)
    except UnknownClass as error:
        raise UnknownClass(f"{error} Write {form}." if form else str(error)) from None


def _of_a_path(hint: Any) -> str:
    """Returns how Params of a class are written that needs a path; "" if it needs none.

    Whoever means that class may type the path alone.
    """
    needed = [
        name
        for name, field in (fields(hint) if types.is_configurable(hint) else {}).items()
        if field.default is REQUIRED and types.is_file_path(field.hint)
    ]
    return f"{hint.__name__}({needed[0]}=...)" if needed else ""


def _read_dict(text: str, hint: Any, template: Template) -> dict[str, Any]:
    if not (text.startswith("{") and text.endswith("}")):
        raise Unreadable("Write {key: value, ...}.")
    _, inner = typing.get_args(hint) or (str, Any)
    result: dict[str, Any] = {}
    for part in split(text[1:-1]):
        key, colon, value = partition(part, ":")
        if not colon:
            raise Unreadable("Write {key: value, ...}.")
        result[unquoted(key)] = _read(value, types.alternatives(inner), template)
    return result


def _read_sequence(text: str, hint: Any, template: Template) -> Any:
    kind: Any = typing.get_origin(hint) or hint
    args = typing.get_args(hint)
    if text[:1] + text[-1:] in ("[]", "()") and is_closed(text):
        text = text[1:-1]
    elif not text:
        raise Unreadable("Write [] for none.")
    parts = split(text.rstrip().removesuffix(","))
    fixed = kind is tuple and args and args[-1] is not Ellipsis
    if fixed and len(parts) != len(args):
        raise Unreadable(f"It has {len(args)} items.")
    hints = args if fixed else [args[0] if args else Any] * len(parts)
    values = [_read(p, types.alternatives(h), template) for p, h in zip(parts, hints, strict=True)]
    return tuple(values) if kind is tuple else values


def _read_string(text: str, hint: Any, template: Template) -> str:
    del hint, template
    return unquoted(text)


def _read_any(text: str, hint: Any, template: Template) -> Any:
    """Reads the value that the text looks like; a string in quotes is always a string."""
    del hint
    if _NOT_FINITE.fullmatch(text):
        raise Unreadable(types.NOT_FINITE)
    if text[:1] + text[-1:] == "[]":
        return _read_sequence(text, list, template)
    if text[:1] + text[-1:] == "{}":
        return _read_dict(text, dict, template)
    members: tuple[Any, ...] = (type(None), bool, int, float, str)
    if text[:1].isupper() and looks_like_class(text):
        members += (types.Params_,)
    return _read(text, members, template)


_READERS: dict[Any, Callable[[str, Any, Template], Any]] = {
    type(None): _read_none,
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    dict: _read_dict,
    list: _read_sequence,
    tuple: _read_sequence,
    str: _read_string,
    types.Path_: _read_string,
    Any: _read_any,
}
