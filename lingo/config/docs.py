"""Reads the documentation of a class from its source: its docstring and its fields' comments."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import textwrap
import tokenize
from pathlib import Path
from typing import NamedTuple

from lingo.config.base import types
from lingo.config.base.ast_lock import AST_LOCK
from lingo.config.node.field import REQUIRED, Field
from lingo.config.node.label import value_text
from lingo.config.params import Configurable, fields
from lingo.config.roots import roots


class FieldDoc(NamedTuple):
    """The documentation of one field of a class."""

    name: str
    type: str  # the annotation, as written
    default: str  # the default, as written; "required" if the field has no default
    comment: str  # the comment lines above the declaration, and the comment at the end of its line
    owner: str  # the class that declares the field
    file: str  # the declaration's file; "" if the source is not available
    line: int  # the declaration's line; 0 if the source is not available


def describe(cls: type[Configurable]) -> list[FieldDoc]:
    """Returns the documentation of all fields of a class, inherited fields first."""
    read = functools.cache(_statements)
    return [_field(field, read(field.owner)) for field in fields(cls).values()]


def attributes(cls: type) -> list[FieldDoc]:
    """Returns the documentation of the annotated attributes that any class itself declares."""
    return [doc._replace(default=doc.default or "required") for doc in _statements(cls).values()]


def first_line(file: Path, cls: str) -> str:
    """Returns the first line of a class's docstring, or "", without importing the file."""
    statements = (node for node in roots.parse(file).body if isinstance(node, ast.ClassDef))
    found = [ast.get_docstring(node) or "" for node in statements if node.name == cls]
    return found[-1].partition("\n")[0] if found else ""


def declaration(field: Field) -> FieldDoc:
    """Returns the documentation of a field, from the source of the class that declares it."""
    return _field(field, _statements(field.owner))


def _field(field: Field, statements: dict[str, FieldDoc]) -> FieldDoc:
    default = "required" if field.default is REQUIRED else value_text(field.default)
    if written := statements.get(field.name):
        is_required = field.default is REQUIRED  # also where the source says `= REQUIRED`
        return written._replace(default=default if is_required else written.default or default)
    owner, hint = field.owner.__name__, types.describe(field.hint)
    return FieldDoc(field.name, hint, default, "", owner, "", 0)


def _statements(owner: type) -> dict[str, FieldDoc]:
    """Returns name -> documentation of the fields that a class itself declares.

    It is empty if the source is not available.
    """
    try:
        with AST_LOCK:
            lines, start = inspect.getsourcelines(owner)
            source = textwrap.dedent("".join(lines))
            statements = ast.parse(source).body
    except (OSError, TypeError):
        return {}
    file = inspect.getsourcefile(owner) or ""
    body = next((n.body for n in statements if isinstance(n, ast.ClassDef)), list[ast.stmt]())
    trailing, above = _comments(source)
    found: dict[str, FieldDoc] = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            comment = [*_block(above, node.lineno), *(trailing[i] for i in span if i in trailing)]
            found[node.target.id] = FieldDoc(
                node.target.id,
                ast.unparse(node.annotation),
                ast.unparse(node.value) if node.value else "",
                " ".join(comment),
                owner.__name__,
                file,
                start + node.lineno - 1,
            )
    return found


def _comments(source: str) -> tuple[dict[int, str], dict[int, str]]:
    """Returns two dicts, line -> comment: comments after code, and comments alone on a line."""
    trailing: dict[int, str] = {}
    above: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            (above if alone else trailing)[token.start[0]] = token.string.lstrip("#").strip()
    return trailing, above


def _block(above: dict[int, str], line: int) -> list[str]:
    """Returns the comment lines just above a line, up to a heading such as `# ---- sizes`."""
    first = line
    while first - 1 in above and not above[first - 1].startswith("--"):
        first -= 1
    return [above[number] for number in range(first, line)]
