"""Reads the value in an override's text: splits it at brackets and commas; `types` reads leaves."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from lingo.config.base import types
from lingo.config.base.errors import UnknownClass, Unreadable, shorten

MAX_DEPTH = 64
_CLASS = re.compile(r"\s*(?:[\w./-]+:)?[A-Za-z_]\w*\s*")
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
# A quote opens a string only where a value may begin; within a word it is an apostrophe.
_TOKEN = re.compile(rf"(?:^|(?<=[,=:(\[{{]))\s*(?:{_QUOTED})|(?P<mark>[,=:()\[\]{{}}])", re.DOTALL)
_CLOSING = {"(": ")", "[": "]", "{": "}"}

Template: TypeAlias = Callable[[str, Any], Any]
"""A function (text, type) -> value that looks up names.

The value is Params for the text `Class` or `Class(field=value, ...)`, or a function for its name.
"""


def read(text: str, hint: Any, template: Template) -> Any:
    """Returns the value that a text has in a field of type `hint`; `template` looks up names.

    Raises Unreadable with a message that continues a field's name: "takes int, got 'four'".
    """
    try:
        return _read(text.strip(), types.alternatives(hint), template)
    except Unreadable as error:
        detail = f". {error}" if str(error) else ""
        raise Unreadable(f"takes {types.describe(hint)}, got {shorten(text)}{detail}") from None


def parse_call(text: str) -> tuple[str, dict[str, str]]:
    """Returns the name and {field: value text} in `Class(field=value, ...)`; raises Unreadable."""
    name, _, rest = (part.strip() for part in text.partition("("))
    marks = list(_marks(text))  # raises if a bracket is not closed
    if not is_class(text):
        raise Unreadable(f"{shorten(text)} is not a class: write Class or Class(field=value, ...).")
    arguments: dict[str, str] = {}
    for part in split(rest.removesuffix(")")) if marks else ():
        field, equals, value = partition(part, "=")
        if not equals or not field:
            raise Unreadable(
                f"{name}(...) takes field=value, got {shorten(part)};"
                " a list is in brackets, as in [1, 2]."
            )
        if field in arguments:
            raise Unreadable(f"{name}(...) has {field!r} twice.")
        arguments[field] = value
    return name, arguments


def is_class(text: str) -> bool:
    """Returns whether a text has the form `Class` or `Class(...)`."""
    name, bracket, _ = text.partition("(")
    return bool(_CLASS.fullmatch(name)) and (not bracket or _is_enclosed(text))


def split(text: str, separator: str = ",") -> list[str]:
    """Splits at each separator outside brackets and quotes, and strips the parts."""
    cuts = [i for i, mark, depth in _marks(text) if depth == 0 and mark == separator]
    starts, ends = [0, *(i + 1 for i in cuts)], [*cuts, len(text)]
    return [text[a:b].strip() for a, b in zip(starts, ends, strict=True)] if text.strip() else []


def partition(text: str, separator: str) -> tuple[str, str, str]:
    """Splits at the first separator outside brackets and quotes, as `str.partition` does."""
    for i, mark, depth in _marks(text):
        if depth == 0 and mark == separator:
            return text[:i].strip(), separator, text[i + 1 :].strip()
    return text.strip(), "", ""


def _marks(text: str) -> Iterator[tuple[int, str, int]]:
    """Yields (index, character, depth) of each bracket and separator outside quotes.

    A quoted string is yielded with the character "". A bracket has the depth outside it.
    """
    open_brackets: list[str] = []
    for token in _TOKEN.finditer(text):
        mark = token["mark"] or ""
        if open_brackets and mark == open_brackets[-1]:
            open_brackets.pop()
        yield token.start(), mark, len(open_brackets)
        if mark in _CLOSING:
            open_brackets.append(_CLOSING[mark])
            if len(open_brackets) > MAX_DEPTH:
                raise Unreadable(f"{shorten(text)} has brackets more than {MAX_DEPTH} deep.")
    if open_brackets:
        raise Unreadable(f"{shorten(text)} lacks a closing {open_brackets[-1]!r}.")


def _is_enclosed(text: str) -> bool:
    """Returns whether the bracket that opens first closes at the end of the text."""
    try:
        closed = [i for i, mark, depth in _marks(text) if depth == 0 and mark in _CLOSING.values()]
    except Unreadable:
        return False
    return closed[:1] == [len(text.rstrip()) - 1]


def _read(text: str, members: tuple[Any, ...], template: Template) -> Any:
    """Returns the value of a text in a field of a union type, by the first member that reads it."""
    detail = ""
    for member in sorted(members, key=types.reading_rank):
        try:
            return _read_member(text, member, template)
        except Unreadable as error:
            detail = detail or str(error)
        except UnknownClass:
            if str not in members and Any not in members:
                raise
    raise Unreadable(detail)


def _read_member(text: str, hint: Any, template: Template) -> Any:
    kind: Any = typing.get_origin(hint) or hint
    brackets = text[:1] + text[-1:]
    if hint is Any:
        return _read(text, types.members_of_any(text, may_be_params=is_class(text)), template)
    if kind is dict:
        pairs = [partition(part, ":") for part in split(text[1:-1])]
        if brackets != "{}" or not all(colon for _, colon, _ in pairs):
            raise Unreadable("Write {key: value, ...}.")
        inner = types.alternatives(types.item(hint, key=""))
        return {types.unquote(key): _read(value, inner, template) for key, _, value in pairs}
    if types.takes_params(hint):
        if text.lower() == "none" or not is_class(text):
            raise Unreadable("Write Class or Class(field=value, ...).")
        return template(text, hint)
    if hint is types.Function_:
        return template(text, hint)
    if kind not in (list, tuple):
        return types.read_leaf(text, hint)
    if not text:
        raise Unreadable("Write [] for none.")
    text = text[1:-1] if brackets in ("[]", "()") and _is_enclosed(text) else text
    items = split(text.rstrip().removesuffix(","))
    hints = map(types.alternatives, types.item_hints(hint, len(items)))
    values = [_read(item, h, template) for item, h in zip(items, hints, strict=True)]
    return tuple(values) if kind is tuple else values
