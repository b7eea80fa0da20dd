"""Compares the fields and weights of every experiment with its golden file, for code review.

    lingo golden
    lingo golden --write

If a change of the framework alters no experiment, all golden files stay as they are. If it alters
experiments, the differences of the golden files show how. A golden file has only the fields that
the experiment sets or inherits. The classes' defaults are in one file, defaults.txt, so a new field
of a shared class changes one file. The files are in tests/goldens of the checkout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import unified_diff
from pathlib import Path
from typing import NamedTuple

from lingo.cli.command import UsageError, VerbOptions
from lingo.config import experiment_index, registry, text
from lingo.config.node.field import REQUIRED
from lingo.config.node.label import label, value_text
from lingo.config.node.tree import field_path, nodes, same, walk
from lingo.config.options import option, option_class
from lingo.config.params import Params, fields
from lingo.config.roots import roots as roots_
from lingo.config.roots.roots import Roots
from lingo.contract import Experiment, build_experiment
from lingo.inspection import weight_table

STALE = 1
FOLDER = Path("tests", "goldens")
DEFAULTS = "defaults.txt"


class Golden(NamedTuple):
    """A golden file, with the text that it should have."""

    file: Path
    file_text: str | None  # the file's text; None: there is no file
    expected_text: str | None  # the text now; None: there is no such experiment


@option_class
class Options(VerbOptions):
    """The options of `lingo golden`."""

    write: bool = option("Write the files instead of comparing them.", default=False)


def run(options: Options) -> int:
    """Prints the differences of stale golden files, or writes them with --write."""
    checkout = roots_.find().packages["tasks"][0].parent
    if not (checkout / "tests").is_dir():
        raise UsageError("goldens are in a checkout of lingo, and this installation has none")
    stale = [g for g in goldens(checkout) if g.file_text != g.expected_text]
    for file, found, expected in stale:
        if expected is None and options.write:
            file.unlink()
            print(f"removed {file}")
        elif expected is None:
            print(f"{file} belongs to no experiment")
        elif options.write:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(expected)
            print(f"wrote {file}")
        else:
            before, after = (found or "").splitlines(), expected.splitlines()
            print("\n".join(unified_diff(before, after, str(file), "now", n=0, lineterm="")))
    if stale and not options.write:
        print(f"{len(stale)} golden files are stale; if that is intended: lingo golden --write")
        return STALE
    return 0


def goldens(checkout: Path) -> list[Golden]:
    """Returns all goldens of a checkout: experiments, defaults.txt, and files of no experiment."""
    packages = {**roots_.find().packages, "params": (checkout / "params",)}
    roots = Roots(packages)
    resolved = {
        name: registry.get(name, (), roots) for name in experiment_index.index(roots).entries
    }
    wanted = {
        checkout / FOLDER / f"{name}.txt": experiment_text(one.params, build_experiment(one))
        for name, one in resolved.items()
    }
    wanted[checkout / FOLDER / DEFAULTS] = defaults_text(one.params for one in resolved.values())
    found = {file: file.read_text() for file in (checkout / FOLDER).glob("*.txt")}
    return [Golden(f, found.get(f), wanted.get(f)) for f in sorted(wanted.keys() | found.keys())]


def experiment_text(params: Params, experiment: Experiment) -> str:
    """Returns an experiment's resolved text without defaults, then its table of weights.

    The table has one row for equal layers.
    """
    lines = (line for line in text.resolve(params) if line.origin != text.DEFAULT)
    table = weight_table.text(weight_table.compact(experiment.task))
    return f"{text.render(lines)}\n{table}"


def defaults_text(experiments: Iterable[Params]) -> str:
    """Returns defaults.txt: a sorted line per field with a default, for all classes in use."""
    waiting = [node.cls for params in experiments for node in nodes(params)]
    found: dict[type, None] = {}
    while waiting:
        if (cls := waiting.pop()) not in found:
            found[cls] = None
            waiting += [node.cls for node in nodes(cls.params())]
    lines = (line for cls in found for line in _default_lines(cls))
    return "".join(f"{line}\n" for line in sorted(lines))


def _default_lines(cls: type) -> Iterator[str]:
    """Yields a line per field of a class with its default, and per value set inside a default."""
    for name, field in fields(cls).items():
        if field.default is REQUIRED:
            continue
        where = f"{label(cls)}.{name}"
        yield f"{where} = {value_text(field.default)}"
        for path, node in walk(field.default, where):
            known = fields(node.cls)
            for inner, value in node.__arguments__.items():
                if not same(value, known[inner].default):
                    yield f"{field_path(path, inner)} = {value_text(value)}"
