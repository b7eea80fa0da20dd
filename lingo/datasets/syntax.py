"""Python files as syntax trees with byte offsets: parsed, never imported."""

from __future__ import annotations

import ast
import inspect
import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lingo.config.base.ast_lock import AST_LOCK

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Owner = ast.Module | Definition


class Documented(NamedTuple):
    """A module, class or function with a docstring, and the literal of that docstring."""

    owner: Owner
    literal: ast.Constant

    @property
    def signature(self) -> str:
        """The declaration up to its colon, in one line; "" for a module."""
        return signature(self.owner)

    @property
    def docstring(self) -> str:
        """The docstring without its indentation."""
        return inspect.cleandoc(str(self.literal.value))


class Parsed(NamedTuple):
    """A Python file."""

    tree: ast.Module
    lines: list[int]  # the first byte of each line, and the end of the file

    def line(self, node: ast.AST) -> int:
        """Returns the first byte of the line in which a node begins, after any decorators."""
        return self.lines[getattr(node, "lineno", 1) - 1]

    def start(self, node: ast.stmt | ast.expr) -> int:
        """Returns the first byte of a node in the file."""
        return self.line(node) + node.col_offset

    def end(self, node: ast.stmt | ast.expr) -> int:
        """Returns the byte after a node in the file."""
        return self.lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)


def parse(code: bytes) -> Parsed | None:
    """Returns the syntax of a file; None if it is not Python in UTF-8."""
    try:
        text = code.decode("utf-8-sig")  # decoded here, so that a coding declaration is ignored
        with AST_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in other people's strings
            tree = ast.parse(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last: nested too deeply
        return None
    mark = len(_BYTE_ORDER_MARK) if code.startswith(_BYTE_ORDER_MARK) else 0  # not counted by ast
    lines = [mark]
    for line in code[mark:].splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    return Parsed(tree, lines)


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yields every block of statements in a tree, nested blocks included."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        for name in _BLOCKS:
            inner = getattr(node, name, None)
            if isinstance(inner, list) and inner:
                waiting += inner
                if isinstance(inner[0], ast.stmt):
                    yield inner


def documented_nodes(tree: ast.Module) -> list[Documented]:
    """Returns the nodes of a module that have a docstring, in the order of the docstrings."""
    owners = [tree, *itertools.chain.from_iterable(blocks(tree))]
    return sorted(documented_among(owners), key=lambda item: item.literal.lineno)


def documented_among(nodes: Iterable[ast.AST]) -> list[Documented]:
    """Returns the nodes that have a docstring."""
    return [Documented(o, t) for o in nodes if isinstance(o, Owner) and (t := _literal(o))]


def excerpt(lines: bytes) -> list[Documented]:
    """Returns the functions and classes with a docstring at the outer level of some lines.

    The lines begin with a `def` or `class`, and end after its docstring or a sibling's docstring.
    """
    indented = lines[:1].isspace()
    code = parse(b"if 1:\n" + lines if indented else lines)
    if code is None:
        return []
    body = next(blocks(code.tree.body[0])) if indented else code.tree.body
    return documented_among(body)


def signature(owner: Owner) -> str:
    """Returns the declaration of a function or class in one line; "" for a module."""
    if isinstance(owner, ast.Module):
        return ""
    if isinstance(owner, ast.ClassDef):
        bases = [ast.unparse(base) for base in (*owner.bases, *owner.keywords)]
        return f"class {owner.name}" + (f"({', '.join(bases)})" if bases else "")
    word = "async def" if isinstance(owner, ast.AsyncFunctionDef) else "def"
    result = f" -> {ast.unparse(owner.returns)}" if owner.returns else ""
    return f"{word} {owner.name}({ast.unparse(owner.args)}){result}"


def _literal(owner: Owner) -> ast.Constant | None:
    first = owner.body[0] if owner.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.value if isinstance(first.value.value, str) else None
    return None
