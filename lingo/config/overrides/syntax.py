"""The syntax of what is typed: texts taken apart where no bracket and no quote is open."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from lingo.config.ast_lock import AST_LOCK
from lingo.config.params import ParamError

MAX_DEPTH = 64

_CLASS = re.compile(r"(?:[\w./-]+:)?[A-Za-z_]\w*")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class Call(NamedTuple):
    """`name(argument=text, ...)` taken apart; a bare `name` has no arguments."""

    name: str
    arguments: dict[str, str]


class Unreadable(ParamError):
    """A text that is no value of the wanted type."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


def call(text: str) -> Call:
    """Takes `Class(field=value, ...)` apart.

    Raises:
        Unreadable: if the text has another form.
    """
    name, bracket, inside = text.partition("(")
    name = name.strip()
    _ = list(_outside_quotes(text))  # says what is wrong with the brackets, if something is
    if not _CLASS.fullmatch(name) or (bracket and not is_closed(text)):
        raise Unreadable(f"{shortened(text)} is no class: write Class or Class(field=value, ...).")
    arguments: dict[str, str] = {}
    for part in split(inside[: inside.rindex(")")] if bracket else ""):
        field, equals, value = partition(part, "=")
        if not equals or not field:
            raise Unreadable(
                f"{name}(...) takes field=value, got {shortened(part)};"
                " a list stands in brackets, as in [1, 2]."
            )
        if field in arguments:
            raise Unreadable(f"{name}(...) has {field!r} twice.")
        arguments[field] = value
    return Call(name, arguments)


def looks_like_class(text: str) -> bool:
    """Returns whether a text has the form `Class` or `Class(...)`."""
    name, bracket, _ = text.partition("(")
    return bool(_CLASS.fullmatch(name.strip())) and (not bracket or is_closed(text))


def split(text: str, separator: str = ",") -> list[str]:
    """Splits at each separator that stands in no brackets and no quotes; strips the parts."""
    if not text.strip():
        return []
    cuts = [i for i, depth in _outside_quotes(text) if depth == 0 and text[i] == separator]
    return [
        text[a:b].strip()
        for a, b in zip([0, *(i + 1 for i in cuts)], [*cuts, len(text)], strict=True)
    ]


def partition(text: str, separator: str) -> tuple[str, str, str]:
    """Splits at the first separator outside brackets and quotes, as `str.partition` does."""
    for i, depth in _outside_quotes(text):
        if depth == 0 and text[i] == separator:
            return text[:i].strip(), separator, text[i + 1 :].strip()
    return text.strip(), "", ""


def unquoted(text: str) -> str:
    """Returns what a quoted string says; other text as it is."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        try:
            with AST_LOCK:
                value = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            return text
        return value if isinstance(value, str) else text
    return text


def _outside_quotes(text: str) -> Iterator[tuple[int, int]]:
    """Yields (index, depth in brackets) of every character that stands in no quotes.

    A quote opens where a value may begin; in the middle of a word it is an apostrophe.
    """
    open_brackets: list[str] = []
    quote, before = "", ","
    skip = False
    for i, c in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = c == "\\"
            quote = "" if c == quote else quote
        elif c in "'\"" and before in ",=([{:" and text.find(c, i + 1) > 0:
            quote = c
        else:
            if open_brackets and c == open_brackets[-1]:
                open_brackets.pop()
            yield i, len(open_brackets)
            if c in _CLOSING:
                open_brackets.append(_CLOSING[c])
                if len(open_brackets) > MAX_DEPTH:
                    raise Unreadable(f"{shortened(text)} has brackets more than {MAX_DEPTH} deep.")
        before = before if c.isspace() else c
    if open_brackets:
        raise Unreadable(f"{shortened(text)} lacks a closing {open_brackets[-1]!r}.")


def is_closed(text: str) -> bool:
    """Returns whether the first bracket closes at the very end, and all others before."""
    try:
        places = list(_outside_quotes(text))
    except Unreadable:
        return False
    closing = [i for i, depth in places if text[i] in ")]}" and depth == 0]
    return bool(closing) and closing[0] == len(text.rstrip()) - 1


def shortened(text: str) -> str:
    """Returns a text as messages show it."""
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}..."
