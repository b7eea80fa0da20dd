"""Compares every experiment with its golden file: what it sets, and its weights, for review.

    lingo golden
    lingo golden --write

A change of the framework that should alter no experiment leaves all golden files as they are; one
that should shows in them what it alters. Defaults of classes are in one file, defaults.txt. The
files are in tests/goldens of the checkout.
"""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path
from typing import NamedTuple

from lingo.cli.command import UsageError, VerbOptions
from lingo.config import experiment_index, registry
from lingo.config.options import option, option_class
from lingo.config.roots import roots as roots_
from lingo.config.roots.roots import Roots
from lingo.contract import build_experiment
from lingo.inspection.golden import defaults_text, experiment_text

STALE = 1
FOLDER = Path("tests", "goldens")
DEFAULTS = "defaults.txt"


class Golden(NamedTuple):
    """A golden file."""

    file: Path
    file_text: str | None  # None if there is no file
    expected_text: str | None  # None if there is no such experiment


@option_class
class Options(VerbOptions):
    """The options of the verb."""

    write: bool = option("Write the files instead of comparing them.", default=False)


def run(options: Options) -> int:
    """Prints or writes the goldens that differ."""
    checkout = roots_.find().packages["tasks"][0].parent
    if not (checkout / "tests").is_dir():
        raise UsageError("goldens belong to a checkout of lingo; this one is installed without")
    stale = [g for g in goldens(checkout) if g.file_text != g.expected_text]
    for file, found, expected in stale:
        if expected is None and options.write:
            file.unlink()
            print(f"removed {file}")
        elif expected is None:
            print(f"{file} is of no experiment")
        elif options.write:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(expected)
            print(f"wrote {file}")
        else:
            before, after = (found or "").splitlines(), expected.splitlines()
            print("\n".join(unified_diff(before, after, str(file), "now", n=0, lineterm="")))
    if stale and not options.write:
        print(f"{len(stale)} golden files are stale; if that is meant: lingo golden --write")
        return STALE
    return 0


def goldens(checkout: Path) -> list[Golden]:
    """Returns the goldens of a checkout: of all experiments, of defaults, and of none."""
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
