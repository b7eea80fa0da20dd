"""`python -m tools.house`: figures of the source, and whether they are within their bounds.

    python -m tools.house                        # a table; exit code 1 if a bound is missed
    python -m tools.house --list=importers       # with the places behind a figure
    python -m tools.house --trace --json         # with what runs before the first gradient

A figure is of `lingo`, `tasks`, `params` and `tools`, unless it names the tests.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.before_gradient import trace_training
from tools.harness import at_least, at_most
from tools.source_tree import ROOT, Edges, Function, SourceFile, SourceTree, circles

SMALL = 60  # lines: a file with one importer and fewer belongs into its user

BOUNDS = {
    "file lines, max": at_most(450),
    "circles of rooms": at_most(0),
    "circles of files of config": at_most(0),
    "circles of folders": at_most(0),
    "files with one importer": at_most(60),
    "lines of lingo without models and datasets": at_most(63_000),
    "its lines of code proper": at_most(37_000),
    "% of its lines that are imports": at_most(7),
    "lines of tests for one of source": at_most(0.85),
    "% of functions with tensors that state shapes": at_least(90),
    "silencers": at_most(15),
    "files of the loop before the first gradient": at_most(20),
    "files on the stack at the gradient": at_most(9),
}
LISTS = ("phrases", "importers", "shapes", "silencers", "circles", "trace")

# Rooms between the command and the gradient.
_LOOP = {"cli", "trainer", "learner", "runtimes", "processes", "checkpoints", "storage"}
_LOOP |= {"inspection"}

# What a reader has to read twice: `python -m tools.house --list=phrases` has the places.
_PHRASES = re.compile(
    r"\b(that of|those of|of which|is none|are none|nobody|no one|so many|beside|likewise"
    r"|heed|whatever)\b"
)
_MATHEMATICS = {"ops", "layers", "learner", "decode", "metrics", "optim"}
_TENSOR_NAMES = {"x", "y", "carry", "data", "nats", "step", "total", "value", "values", "weight"}
_TENSOR = re.compile(
    r"\b(tf\.(Tensor|Variable|RaggedTensor|IndexedSlices)|np\.ndarray|NDArray"
    r"|(jax|jnp)\.(Array|ndarray)|Batch|Caches)\b"  # the last two are mappings of tensors
)
_SHAPE = re.compile(
    r"(?<![\w\])`])\[(?=[^\]]*[A-Za-z.*]|\])[\w\s*.,/+\-()\"']*\](?!\()"  # [B, T, D], [n], []
    r"|\b(scalars?|(any|same|whatever) shapes?|shapes? of|of shape)\b"
)
_SILENCER = re.compile(r"#\s*(noqa|type:\s*ignore|pyright:|pragma|pylint:|fmt:)")


class Report(NamedTuple):
    """What was measured."""

    rooms: dict[str, tuple[int, int]]  # name -> (files, lines)
    figures: dict[str, float]  # what -> number
    places: dict[str, list[str]]  # list -> a line for each place

    def misses(self) -> list[str]:
        """Returns a line for each figure that is out of its bound."""
        return [
            f"{name} is {value:,.6g}, wanted {BOUNDS[name]}"
            for name, value in self.figures.items()
            if name in BOUNDS and not BOUNDS[name].holds(value)
        ]


# ---- shapes ------------------------------------------------------------------------------------


class Name(NamedTuple):
    """The name of a function."""

    word: str  # name alone
    is_public: bool  # whether other files may use it: no underscores, not inside a function
    place: str  # `file:line: Class.name`


def _name(file: SourceFile, around: Iterable[ast.AST], word: str, line: int) -> Name:
    outer = [str(getattr(node, "name", "")) for node in around]
    is_public = all(isinstance(node, ast.ClassDef) for node in around) and not any(
        part.startswith("_") and part != "__call__" for part in (*outer, word)
    )
    return Name(word, is_public, f"{file.path}:{line}: {'.'.join([*outer, word])}")


def shapes(files: Sequence[SourceFile]) -> dict[Name, bool]:
    """Returns every public function that takes or gives tensors -> whether it states a shape.

    A method without a docstring is left out where a base class or a Protocol declares it so.
    """
    bases = {
        node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        for file in files
        for node in file.classes()
    }
    docstrings = {
        _name(file, around, node.name, node.lineno): ast.get_docstring(node)
        for file in files
        for around, node in file.functions()
        if has_tensors(file, node)
    }
    declared = {
        tuple(name.place.split()[-1].split(".")) for name, text in docstrings.items() if text
    }

    def is_declared(name: Name) -> bool:
        cls = name.place.split()[-1].rpartition(".")[0]
        above = [*_ancestors(cls, bases), *(c for c in bases if "Protocol" in bases[c])]
        return any((base, name.word) in declared for base in above)

    return {
        name: bool(_SHAPE.search(text or ""))
        for name, text in docstrings.items()
        if name.is_public and (text or not is_declared(name))
    }


def _ancestors(cls: str, bases: Mapping[str, Iterable[str]]) -> Iterator[str]:
    for base in bases.get(cls, ()):
        if base != cls:
            yield base
            yield from _ancestors(base, bases)


def has_tensors(file: SourceFile, node: Function) -> bool:
    """Returns whether a function takes or gives tensors, going by its annotations.

    Any is a tensor where mathematics calls it `x` or the like; a function that it takes is not.
    """
    arguments = [part for part in ast.walk(node.args) if isinstance(part, ast.arg)]
    hints = {one.arg: _types(one.annotation) for one in arguments if one.annotation}
    if node.returns:
        hints["return"] = _types(node.returns)
    return any(map(_TENSOR.search, hints.values())) or (
        file.room in _MATHEMATICS and any(hints.get(name) == "Any" for name in _TENSOR_NAMES)
    )


def _types(hint: ast.AST) -> str:
    """Returns the types in an annotation, but for those in Callables."""
    match hint:
        case ast.Constant(value=value):
            return str(value)
        case ast.Name() | ast.Attribute():
            return ast.unparse(hint)
        case ast.Subscript(value=ast.Name(id="Callable")):
            return ""
    return " ".join(map(_types, ast.iter_child_nodes(hint))).strip()


# ---- files -------------------------------------------------------------------------------------


def silencers(files: Iterable[SourceFile]) -> list[str]:
    """Returns the places where a checker is told to look away, also those for a whole file."""
    return [
        f"{file.path}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.text.splitlines(), 1)
        if _SILENCER.search(line)
    ]


def single_importers(tree: SourceTree) -> dict[SourceFile, str]:
    """Returns files -> their only importer; what a package exports again has users elsewhere."""
    importers: dict[str, list[str]] = {}
    for importer, imported in tree.edges(lambda file: file.path):
        importers.setdefault(imported, []).append(importer)
    for package in (file for file in tree.files if file.is_package):
        for node in package.syntax.body:
            if isinstance(node, ast.ImportFrom) and (file := tree.find(str(node.module))):
                importers.pop(file.path, None)
    return {f: users[0] for f in tree.files if len(users := importers.get(f.path, [])) == 1}


def _is_framework(file: SourceFile) -> bool:
    return file.path.startswith("lingo/") and file.room not in ("models", "datasets")


def lines_of_code(file: SourceFile) -> int:
    """Returns the lines of a file that are neither empty, comments nor docstrings."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [n for n in ast.walk(file.syntax) if isinstance(n, kinds) and ast.get_docstring(n)]
    said = {line for n in nodes for line in _lines(n.body[0])}
    lines = enumerate(map(str.strip, file.text.splitlines()), 1)
    return sum(bool(text) and text[0] != "#" and line not in said for line, text in lines)


def import_share(files: Iterable[SourceFile]) -> float:
    """Returns which part of the lines of some files are imports, in percent."""
    kinds, files = (ast.Import, ast.ImportFrom), list(files)
    nodes = (n for f in files for n in ast.walk(f.syntax) if isinstance(n, kinds))
    return 100 * sum(len(_lines(n)) for n in nodes) / (sum(f.num_lines for f in files) or 1)


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def phrases(file: SourceFile) -> Iterator[str]:
    """Yields the places of phrases in docstrings and comments that have to be read twice."""
    for number, line in enumerate(file.text.splitlines(), 1):
        if found := _PHRASES.search(line):
            yield f"{file.path}:{number}: {found[0]}: {line.strip()}"


def folder_of(file: SourceFile) -> str:
    """Returns the folder of a file of lingo; "" for one that only exports what others define."""
    is_inside = file.module.startswith("lingo.") and not file.path.endswith("__init__.py")
    return str(Path(file.path).parent) if is_inside else ""


def describe_circles(edges: Edges) -> Iterator[str]:
    """Yields for each circle its members, then the first import of each pair of them."""
    for members in circles(edges):
        yield f"circle of {len(members)}: {' '.join(members)}"
        yield from (f"  {edges[pair][0]}" for pair in sorted(edges) if {*pair} <= {*members})


def quantiles(what: str, numbers: Iterable[int]) -> dict[str, int]:
    """Returns the numbers that half, 90 % and 99 % of all numbers are below, and the largest."""
    ordered = sorted(numbers) or [0]
    parts = {"p50": 50, "p90": 90, "p99": 99}
    figures = {f"{what}, {name}": ordered[len(ordered) * p // 100] for name, p in parts.items()}
    return {**figures, f"{what}, max": ordered[-1]}


# ---- all ---------------------------------------------------------------------------------------


def measure(root: Path, *, traced: bool = False) -> Report:
    """Measures everything; `traced` runs the first step of an experiment, too."""
    tree, tests = SourceTree(root), SourceTree(root, ["tests"])
    num_files = Counter(file.room for file in (*tree.files, *tests.files))
    rooms = {
        room: (number, sum(f.num_lines for f in (*tree.files, *tests.files) if f.room == room))
        for room, number in num_files.items()
    }
    importers = single_importers(tree)
    edges = {
        "rooms": tree.edges(lambda file: file.room),
        "files of config": tree.edges(lambda f: f.path if f.room == "config" else ""),
        "folders": tree.edges(folder_of),
    }
    framework = [file for file in tree.files if _is_framework(file)]
    said = [place for file in tree.files for place in phrases(file)]
    source, of_tests = (sum(file.num_lines for file in t.files) for t in (tree, tests))
    stated = shapes([file for file in tree.files if file.room != "tools"])
    silent = [name.place for name, is_stated in stated.items() if not is_stated]
    functions = [node for file in tree.files for _, node in file.functions()]
    figures = {
        "files of source": len(tree.files),
        "lines of source": source,
        "lines of tests": of_tests,
        "lines of tests for one of source": of_tests / (source or 1),
        "lines of lingo without models and datasets": sum(f.num_lines for f in framework),
        "its lines of code proper": sum(map(lines_of_code, framework)),
        "% of its lines that are imports": import_share(framework),
        **quantiles("file lines", [file.num_lines for file in tree.files if file.text]),
        **quantiles("function lines", [(f.end_lineno or 0) - f.lineno + 1 for f in functions]),
        "files with one importer": len(importers),
        f"of these under {SMALL} lines": sum(file.num_lines < SMALL for file in importers),
        **{f"circles of {what}": len(circles(pairs)) for what, pairs in edges.items()},
        "public functions with tensors": len(stated),
        "% of functions with tensors that state shapes": 100
        - 100 * len(silent) / (len(stated) or 1),
        "silencers": len(silencers(tree.files)),
        "silencers in tests": len(silencers(tests.files)),
        "phrases that are read twice": len(said),
    }
    places = {
        "phrases": said,
        "importers": [
            f"{f.path}: {f.num_lines} lines, for {user}" for f, user in importers.items()
        ],
        "shapes": silent,
        "silencers": silencers((*tree.files, *tests.files)),
        "circles": [f"{what}: {t}" for what in edges for t in describe_circles(edges[what])],
    }
    if traced:
        before = trace_training(root)
        loop = [path for path in before.files if path.split("/")[1] in _LOOP]
        figures["files of the loop before the first gradient"] = len(loop)
        figures["files on the stack at the gradient"] = len({c.split(":")[0] for c in before.stack})
        figures["calls on the stack at the gradient"] = len(before.stack)
        places["trace"] = [*loop, "", *before.stack]
    return Report(rooms, figures, places)


def print_tables(report: Report) -> None:
    """Prints rooms, figures and bounds."""
    print(f"{'room':<16}{'files':>8}{'lines':>8}")
    for room, (num_files, num_lines) in report.rooms.items():
        print(f"{room:<16}{num_files:8,}{num_lines:8,}")
    print()
    for name, value in report.figures.items():
        print(f"{name:<48}{value:10,.6g}  {BOUNDS.get(name, '')}".rstrip())


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what the arguments ask for; returns 1 if a figure is out of its bound, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.house",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="append", default=[], choices=LISTS)
    parser.add_argument("--json", action="store_true", help="figures and all lists as JSON")
    parser.add_argument("--trace", action="store_true", help="train up to the first gradient, too")
    parser.add_argument("--root", type=Path, default=ROOT, help="of another checkout")
    options = parser.parse_args(arguments)
    report = measure(options.root.resolve(), traced=options.trace or "trace" in options.list)
    if options.json:
        print(json.dumps({**report._asdict(), "misses": report.misses()}, indent=1))
    else:
        for name in options.list:
            print(f"{name}:", *report.places[name], sep="\n  ")
        if not options.list:
            print_tables(report)
        print(*(f"missed: {line}" for line in report.misses()), sep="\n")
    return int(bool(report.misses()))


if __name__ == "__main__":
    sys.exit(main())
