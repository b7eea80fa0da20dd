"""Python files as syntax trees that know their bytes: parsed, never imported."""

from __future__ import annotations

import ast
import inspect
import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lingo.config.ast_lock import AST_LOCK

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Owner = ast.Module | Definition


class Documented(NamedTuple):
    """Something with a docstring.

    Attributes:
        owner: the module, class or function.
        literal: the docstring, as it is written.
    """

    owner: Owner
    literal: ast.Constant

    @property
    def signature(self) -> str:
        """How it is declared, in one line: what stands before its colon; "" for a module."""
        return signature(self.owner)

    @property
    def docstring(self) -> str:
        """The docstring without its indentation."""
        return inspect.cleandoc(str(self.literal.value))


class Parsed(NamedTuple):
    """A Python file.

    Attributes:
        tree: its syntax.
        lines: the first byte of each line, and of one more.
    """

    tree: ast.Module
    lines: list[int]

    def line(self, node: ast.AST) -> int:
        """Returns the first byte of the line in which a node begins; it follows any decorators."""
        return self.lines[getattr(node, "lineno", 1) - 1]

    def start(self, node: ast.stmt | ast.expr) -> int:
        """Returns the first byte of a node in the file."""
        return self.line(node) + node.col_offset

    def end(self, node: ast.stmt | ast.expr) -> int:
        """Returns the byte behind a node in the file."""
        return self.lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)


def parse(code: bytes) -> Parsed | None:
    """Returns the syntax of a file; None if it is no Python in UTF-8."""
    try:
        text = code.decode("utf-8-sig")  # as text: what it declares to be written in does not count
        with AST_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings, which are not ours
            tree = ast.parse(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last: nested too deeply
        return None
    mark = len(_BYTE_ORDER_MARK) if code.startswith(_BYTE_ORDER_MARK) else 0  # not counted by ast
    lines = [mark]
    for line in code[mark:].splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    return Parsed(tree, lines)


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yields every block of statements of a module and of what is defined in it."""
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
    """Returns what has a docstring in a module, in the order in which these stand there."""
    owners = [tree, *itertools.chain.from_iterable(blocks(tree))]
    return sorted(documented_among(owners), key=lambda item: item.literal.lineno)


def documented_among(nodes: Iterable[ast.AST]) -> list[Documented]:
    """Returns which of some nodes have a docstring."""
    return [Documented(o, t) for o in nodes if isinstance(o, Owner) and (t := _literal(o))]


def excerpt(lines: bytes) -> list[Documented]:
    """Returns what is declared with a docstring at the outer level of some lines of a file.

    Args:
        lines: from that of a `def` or `class` to where any of its siblings, or what documents it,
            ends; indented as in the file.
    """
    indented = lines[:1].isspace()
    code = parse(b"if 1:\n" + lines if indented else lines)
    if code is None:
        return []
    body = next(blocks(code.tree.body[0])) if indented else code.tree.body
    return documented_among(body)


def signature(owner: Owner) -> str:
    """Returns how a function or a class is declared, in one line; "" for a module."""
    if isinstance(owner, ast.Module):
        return ""
    if isinstance(owner, ast.ClassDef):
        bases = [ast.unparse(base) for base in (*owner.bases, *owner.keywords)]
        return f"class {owner.name}" + (f"({', '.join(bases)})" if bases else "")
    word = "async def" if isinstance(owner, ast.AsyncFunctionDef) else "def"
    result = f" -> {ast.unparse(owner.returns)}" if owner.returns else ""
    return f"{word} {owner.name}({ast.unparse(owner.args)}){result}"


def _literal(owner: Owner) -> ast.Constant | None:
    """Returns the docstring of something, if it has one."""
    first = owner.body[0] if owner.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.value if isinstance(first.value.value, str) else None
    return None
