"""Documentation of a class from its source: the docstring, and the comment of each field."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

from lingo.config import types
from lingo.config.ast_lock import AST_LOCK
from lingo.config.label import value_text
from lingo.config.node.field import REQUIRED, Field
from lingo.config.params import Configurable, fields


class FieldDoc(NamedTuple):
    """A field of a class.

    Attributes:
        name: the field's name.
        type: its type, as written.
        default: its default, as written; "required" if there is none.
        comment: the comment beside it and on the lines above.
        owner: the class that declares it.
        file: the file of the declaration; "" if the source is not available.
        line: the line of the declaration; 0 if the source is not available.
    """

    name: str
    type: str
    default: str
    comment: str
    owner: str
    file: str
    line: int


class ClassDoc(NamedTuple):
    """A class.

    Attributes:
        name: the name of the class.
        doc: its docstring.
        fields: inherited ones first.
    """

    name: str
    doc: str
    fields: list[FieldDoc]


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
        return FieldDoc(
            field.name, types.describe(field.hint), default, "", field.owner.__name__, "", 0
        )
    return FieldDoc(
        field.name,
        statement.type,
        statement.default or default,
        statement.comment,
        field.owner.__name__,
        inspect.getsourcefile(field.owner) or "",
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

    def upwards() -> Iterator[str]:
        at = line - 1
        while at in above and not above[at].startswith("--"):
            yield above[at]
            at -= 1

    return list(upwards())[::-1]
