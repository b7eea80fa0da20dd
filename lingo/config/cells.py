"""Copies classes and functions from notebook cells into a file, so that a run can name them.

A class or function that was defined in a cell is in no file, so no other process could find it
again. Before training, its definition and all definitions that it needs are written into

    ~/.cache/lingo/notebooks/<digest>/notebook.py

and imported from there. The file has imports, functions, classes and assignments, each as it was
executed last. Other statements, such as a call of `train`, are left out. If a name then has another
value in the file than in the notebook, training does not begin.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import os
import symtable
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, cast

from lingo.config import importing, source_files, trained_files
from lingo.config.base.ast_lock import AST_LOCK
from lingo.config.base.errors import ParamError
from lingo.config.codec import Decoder, Encoder
from lingo.config.node.tree import functions, nodes
from lingo.config.params import Params
from lingo.config.roots import roots as roots_
from lingo.config.trust import Named

FILE = "notebook.py"

_FUTURE = "__future__"
_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, type(None))
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Statement(NamedTuple):
    """A statement at the top of a cell that gives values to names."""

    text: str  # the source, with decorators and with a comment at the end of its last line
    names: tuple[str, ...]  # names that the statement defines; "*" after `from module import *`
    continues: bool = False  # whether it reads its names' earlier values, as `x = x / 2` does


def import_cells(params: Params) -> Params:
    """Returns the parameters with each cell's class or function replaced by its copy in a file.

    Outside a notebook, or if nothing comes from a cell, `params` itself is returned. The file is
    recorded as trained by this user (see `trained_files`), who has typed the cells.

    Raises ParamError if a definition needs a name that no import, `def`, `class` or assignment at
    the top of a cell defines, if a name has another value in the file than in the notebook, or if
    the file cannot be written or imported.
    """
    shell = find_shell()
    named = [n for n in _all_named(params) if _is_of_cell(n)]
    if shell is None or not named:
        return params
    cells: list[str] = shell.history_manager.input_hist_parsed
    text = definitions(cells, [n.__name__ for n in named], known=shell.user_ns)
    file = _write(text)
    module = importing.import_file(file, roots_.find())
    _check_values(text, vars(module), shell.user_ns)
    known: dict[str, Named] = {}

    def name(used: Named) -> str:
        """Returns a name for a class or function; a cell's class is decoded as the file's copy."""
        mark = f"{used.__module__}:{used.__qualname__}"
        known[mark] = getattr(module, used.__name__) if _is_of_cell(used) else used
        return mark

    encoded = Encoder(name).encode(params)
    return Decoder(known).decode(encoded)


def find_shell() -> Any:
    """Returns the IPython shell that runs this code, or None outside a notebook."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def _all_named(params: Params) -> list[Named]:
    """Returns all classes in a tree of Params, with their bases, and then all functions in it."""
    classes = {cls: None for node in nodes(params) for cls in node.cls.__mro__}
    return [*classes, *dict.fromkeys(functions(params))]


def _is_of_cell(named: type | FunctionType) -> bool:
    is_main = named.__module__ == "__main__" and "." not in named.__qualname__
    return is_main and roots_.source_file(named) is None


def _write(text: str) -> Path:
    """Writes a notebook's definitions into its file, unless they are there already.

    Raises ParamError if the file cannot be written.
    """
    content = text.encode()
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    digest = hashlib.sha256(content).hexdigest()[:16]
    file = Path(os.path.expanduser(home), "lingo", "notebooks", digest, FILE).resolve()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not (file.is_file() and file.read_bytes() == content):
            handle, name = tempfile.mkstemp(dir=file.parent)
            with open(handle, "wb") as stream:
                stream.write(content)
            os.replace(name, file)
        trained_files.remember([source_files.read(file)])
    except OSError as error:
        raise ParamError(
            f"the classes of this notebook cannot be written to {error.filename or file}:"
            f" {error.strerror}. Write their cells into a file: %%writefile mine.py"
        ) from None
    return file


def _check_values(text: str, found: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raises ParamError if a name has another value in the file (`found`) than in the notebook."""
    for name in (name for statement in _statements([text]) for name in statement.names):
        if name in found and name in known and _differ(found[name], known[name]):
            raise ParamError(
                f"{name} has another value in the notebook than its imports and assignments give it"
                " in a file: a loop, a method or a cell that ran twice has changed it, or it is"
                " random. Let a function return it, or save it in a file"
            )


def _differ(a: Any, b: Any) -> bool:
    """Returns whether two values differ; only plain data and NumPy arrays are compared."""
    kind = cast("type[Any]", type(a))
    if kind is not type(b):
        return issubclass(kind, _PLAIN) and isinstance(b, _PLAIN)
    if issubclass(kind, dict):
        return a.keys() != b.keys() or any(_differ(a[key], b[key]) for key in a)
    if issubclass(kind, (list, tuple)):
        return len(a) != len(b) or any(map(_differ, a, b))
    if kind.__module__ == "numpy" and hasattr(a, "tobytes"):
        if a.dtype != b.dtype or a.shape != b.shape:
            return True
        return _differ(a.tolist(), b.tolist()) if a.dtype == object else a.tobytes() != b.tobytes()
    return issubclass(kind, _PLAIN) and a != b and repr(a) != repr(b)  # NaN differs from NaN


# ---- the definitions that are needed -------------------------------------------------------------


def definitions(cells: Sequence[str], names: Iterable[str], *, known: Collection[str] = ()) -> str:
    """Returns the text of a module with the cells' definitions of `names` and of all they need.

    Args:
        cells: texts of cells in the order of execution; cells that are not Python are left out.
        names: the names that the module must define.
        known: all names that have values in the notebook.

    Raises ParamError if a needed name of `known` is defined by no statement that can be repeated.
    """
    statements = [*_statements(cells)]
    selection = _Selection(statements, known)
    for name in names:
        if not any(name in statement.names for statement in statements):
            raise ParamError(f"{name} is not defined by def or class at the top of a cell")
        selection.add(name, user=name)
    future = dict.fromkeys(s.text for s in statements if s.text.startswith(f"from {_FUTURE} "))
    blocks = [*future, *(s.text for s in selection.found if s.text not in future)]
    return "\n\n".join(['"""Definitions of a notebook, written by lingo."""', *blocks]) + "\n"


class _Selection:
    """The statements that define some names, each after the statements that it depends on."""

    def __init__(self, statements: Iterable[Statement], known: Collection[str]) -> None:
        self._known = known
        # The statements that `add` is working on, since functions may call each other.
        self._open: list[Statement] = []
        # Name -> its latest statement, preceded by the earlier statements that this continues.
        self._latest: dict[str, list[Statement]] = {}
        for statement in statements:
            for name in statement.names:
                earlier = self._latest.get(name, []) if statement.continues else []
                self._latest[name] = [*earlier, statement]
        self.found = dict.fromkeys(self._latest.get("*", []))

    def add(self, name: str, *, user: str) -> None:
        """Adds the statements that define a name; raises ParamError if no cell defines it.

        `user` is the name whose definition needs it, for the message.
        """
        if name not in self._latest:
            if name in self._known and not hasattr(builtins, name):
                raise ParamError(
                    f"{user} uses {name}, which no import, def, class or assignment at the top of a"
                    f" cell defines, so a file could not define it. Define it so, or write the cell"
                    f" of {user} into a file: %%writefile mine.py"
                )
            return
        for statement in self._latest[name]:
            if statement in self.found or statement in self._open:
                continue
            self._open.append(statement)
            for needed in dict.fromkeys(_global_names(statement.text)):
                if needed not in statement.names:
                    self.add(needed, user=name)
            self._open.pop()
            self.found[statement] = None


def _statements(cells: Sequence[str]) -> Iterator[Statement]:
    for cell in cells:
        try:
            with AST_LOCK:
                body = ast.parse(cell).body
        except (SyntaxError, ValueError):
            continue
        for node in body:
            if names := tuple(_names(node)):
                yield Statement(_text(cell, node), names, _continues(node, names))


def _names(node: ast.stmt) -> Iterator[str]:
    """Yields the names that an import, a definition or an assignment defines or changes."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, _Definition):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from _target_names(target)


def _target_names(target: ast.expr) -> Iterator[str]:
    """Yields the names that an assignment changes: `x`, also for `x[0]` and `x.y`."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Subscript, ast.Attribute, ast.Starred)):
        yield from _target_names(target.value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _target_names(part)


def _continues(node: ast.stmt, names: Collection[str]) -> bool:
    """Returns whether a statement needs the earlier values of the names that it defines."""
    if isinstance(node, ast.Import):
        return any("." in alias.name and not alias.asname for alias in node.names)
    if isinstance(node, ast.AugAssign):
        return True
    parts: list[ast.AST] = [node]
    if isinstance(node, _Definition):  # a body may refer to its own name, but is executed later
        parts = [*node.decorator_list, *getattr(node, "bases", [])]
    inner = (child for part in parts for child in ast.walk(part))
    return any(
        isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load) and child.id in names
        for child in inner
    )


def _text(cell: str, node: ast.stmt) -> str:
    """Returns a statement's source, with decorators and with a comment after it on its line."""
    lines = cell.encode().splitlines()
    decorators = node.decorator_list if isinstance(node, _Definition) else []
    first = min([node.lineno, *(d.lineno for d in decorators)]) - 1
    last, column = (node.end_lineno or node.lineno) - 1, node.end_col_offset or 0
    rest = lines[last][column:]
    chosen = [*lines[first:last], lines[last][:column]]
    chosen[0] = chosen[0] if decorators else chosen[0][node.col_offset :]
    comment = rest.decode() if rest.strip().startswith(b"#") else ""
    return b"\n".join(chosen).decode() + comment


def _global_names(text: str) -> Iterator[str]:
    """Yields the names that a statement reads, except names that are local to a function."""
    waiting = [symtable.symtable(text, FILE, "exec")]
    while waiting:
        table = waiting.pop()
        is_module = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (is_module or symbol.is_global()):
                yield symbol.get_name()
        waiting += table.get_children()
