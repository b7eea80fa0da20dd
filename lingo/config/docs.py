"""Documentation of a class from its source: the docstring, and the comment of each field."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from typing import NamedTuple

from lingo.config import types
from lingo.config.ast_lock import AST_LOCK
from lingo.config.label import value_text
from lingo.config.node.field import REQUIRED, Field
from lingo.config.params import Configurable, fields


class FieldDoc(NamedTuple):
    """A field of a class."""

    name: str
    type: str  # as written
    default: str  # as written; "required" if there is none
    comment: str  # beside it and on the lines above
    owner: str  # the class that declares it
    file: str  # of the declaration; "" if the source is not available
    line: int  # of the declaration; 0 if the source is not available


class ClassDoc(NamedTuple):
    """A class."""

    name: str
    doc: str
    fields: list[FieldDoc]  # inherited ones first


class _Statement(NamedTuple):
    """`name: type = default  # comment` in a class."""

    type: str
    default: str
    comment: str
    line: int


def describe(cls: type[Configurable]) -> ClassDoc:
    """Returns the documentation of a class."""
    statements = {
        owner: _statements(owner) for owner in {field.owner for field in fields(cls).values()}
    }
    found = [
        _field(field, statements[field.owner].get(field.name)) for field in fields(cls).values()
    ]
    return ClassDoc(cls.__name__, inspect.cleandoc(cls.__doc__ or ""), found)


def declaration(field: Field) -> FieldDoc:
    """Returns the documentation of one field."""
    return _field(field, _statements(field.owner).get(field.name))


def _field(field: Field, statement: _Statement | None) -> FieldDoc:
    default = "required" if field.default is REQUIRED else value_text(field.default)
    if statement is None:
        statement = _Statement(types.describe(field.hint), default, "", 0)
    file = inspect.getsourcefile(field.owner) if statement.line else None
    return FieldDoc(
        field.name,
        statement.type,
        statement.default or default,
        statement.comment,
        field.owner.__name__,
        file or "",
        statement.line,
    )


def _statements(owner: type) -> dict[str, _Statement]:
    """Returns the fields that a class itself declares; none if its source is not available."""
    try:
        with AST_LOCK:
            lines, start = inspect.getsourcelines(owner)
            source = textwrap.dedent("".join(lines))
            statements = ast.parse(source).body
    except (OSError, TypeError):
        return {}
    body = next((n.body for n in statements if isinstance(n, ast.ClassDef)), list[ast.stmt]())
    beside, above = _comments(source)
    found: dict[str, _Statement] = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            comment = [*_block(above, node.lineno), *(beside[i] for i in span if i in beside)]
            default = ast.unparse(node.value) if node.value else ""
            line = start + node.lineno - 1
            found[node.target.id] = _Statement(
                ast.unparse(node.annotation), default, " ".join(comment), line
            )
    return found


def _comments(source: str) -> tuple[dict[int, str], dict[int, str]]:
    """Returns comments by line: those beside code, and those on a line of their own."""
    beside: dict[int, str] = {}
    above: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            (above if alone else beside)[token.start[0]] = token.string.lstrip("#").strip()
    return beside, above


def _block(above: dict[int, str], line: int) -> list[str]:
    """Returns the comment lines just above a line, up to a heading such as `# ---- sizes`."""
    first = line
    while first - 1 in above and not above[first - 1].startswith("--"):
        first -= 1
    return [above[number] for number in range(first, line)]
