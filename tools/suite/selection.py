"""Selects tests: of the promises, of a part of the rest, of the files that changed."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.source_tree import ROOT, Import, SourceTree
from tools.suite import slow_list
from tools.suite.runs import GROUPS, group_of

NUM_PARTS = 24
PART = ROOT / ".ci" / "part"
PROMISES = ROOT / "tests" / "promises.md"
FILE_SECONDS = 0.1  # to collect a file
CHANGED_SECONDS = 150.0  # of slow tests of changed files, as tests/slow.txt has them

DOCUMENTS = "tests/test_docs.py::test_every_command_works"


def test_files() -> list[str]:
    """Returns the paths of all files of tests, by group and path."""
    paths = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    order = [*GROUPS]
    return sorted(paths, key=lambda path: (order.index(group_of(path)), path))


# ---- promises ------------------------------------------------------------------------------------


def promised_tests() -> list[str]:
    """Returns the ids of the tests that tests/promises.md names; without parameters, all forms."""
    return sorted({*re.findall(r"`(tests/[^`]+::[^`]+)`", PROMISES.read_text())})


def is_promised(test: str, promised: Sequence[str]) -> bool:
    """Returns whether a test is among those that the promises name."""
    return test in promised or test.partition("[")[0] in promised


# ---- parts ---------------------------------------------------------------------------------------


def current_part() -> int:
    """Returns the number of the part that the next landing runs."""
    return int(PART.read_text())


def part_targets(part: int) -> list[str]:
    """Returns the files, and pages of documents, of a part, 0 to NUM_PARTS - 1."""
    promised = promised_tests()
    slow = {k: v for k, v in slow_list.read().items() if not is_promised(k, promised)}
    return divide(target_seconds(slow), NUM_PARTS)[part]


def target_seconds(slow: Mapping[str, float]) -> dict[str, float]:
    """Returns the seconds of slow tests by file; by test for pages, whose tests share nothing.

    Each has a little more, to collect it, and so has a file without slow tests.
    """
    seconds: dict[str, float] = {}
    for file in test_files():
        own = {test: value for test, value in slow.items() if test.startswith(f"{file}::")}
        pages = {test: value for test, value in own.items() if test.startswith(DOCUMENTS)}
        seconds |= {test: FILE_SECONDS + value for test, value in pages.items()}
        if len(pages) < len(own) or not pages:
            seconds[file] = FILE_SECONDS + sum(own.values()) - sum(pages.values())
    return seconds


def divide(seconds: Mapping[str, float], num: int) -> list[list[str]]:
    """Divides targets, in order, into parts that take about as long as each other.

    A target is in the part in which the middle of its time lies.
    """
    parts: list[list[str]] = [[] for _ in range(num)]
    total, before = sum(seconds.values()), 0.0
    for target, value in seconds.items():
        parts[int((before + value / 2) / total * num)].append(target)
        before += value
    return parts


# ---- changes -------------------------------------------------------------------------------------


class Changed(NamedTuple):
    """Slow tests of the files that changed."""

    tests: dict[str, str]  # file or test id -> the changed file
    rest: dict[str, str]  # the same, of tests that the time does not allow


def changed_tests(files: Sequence[str]) -> Changed:
    """Returns slow tests for changed files: first their own, then those that import them.

    Last come the tests of the folder that mirrors theirs. Each group is in the order of the
    files. The first ones that together take at most CHANGED_SECONDS are chosen.
    """
    slow = slow_list.read()
    near: dict[str, str] = {}
    for mirrors in zip(*(_mirrors(file, slow) for file in files), strict=True):
        for file, tests in zip(files, mirrors, strict=True):
            for test in tests:
                near.setdefault(test, file)
    chosen, rest, total = {}, {}, 0.0
    for test, file in near.items():
        seconds = sum(value for name, value in slow.items() if name.startswith(test))
        if seconds == 0.0:
            continue
        if total == 0.0 or total + seconds <= CHANGED_SECONDS:
            chosen[test] = file
            total += seconds
        else:
            rest[test] = file
    return Changed(chosen, rest)


def _mirrors(file: str, slow: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns tests for a file: its own, those that import it, those in the folder like its."""
    path = Path(file)
    if path.suffix == ".md":
        return [test for test in slow if test.startswith(f"{DOCUMENTS}[{file}")], [], []
    if path.suffix == ".ipynb":
        return ["tests/test_notebooks.py"], [], []
    if path.suffix != ".py":
        return [], [], []
    if path.name.startswith("test_"):
        return [file], [], []
    if path.parts[0] == "tests":  # a program that tests start, or what they share
        own = [test for test in _tests_in(path.parent) if path.name in (ROOT / test).read_text()]
        return own, _importers(path), []
    tests = _tests_in(Path("tests", path.parent))
    own = [test for test in tests if Path(test).name == f"test_{path.name}"]
    return own, _importers(path), tests


def _tests_in(folder: Path) -> list[str]:
    return [
        f"{folder.as_posix()}/{path.name}" for path in sorted((ROOT / folder).glob("test_*.py"))
    ]


def _importers(path: Path) -> list[str]:
    """Returns the files of tests that import a file, or a name of it."""
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    found = {one.file.path for one in _imports() if f"{one.name}.".startswith(f"{module}.")}
    return sorted(file for file in found if Path(file).name.startswith("test_"))


@functools.cache
def _imports() -> list[Import]:
    """Returns every import of the tests."""
    return SourceTree(folders=("tests",)).imports


def changed_files() -> list[str]:
    """Returns the files that changed since the last landing, the newest first.

    Each landing raises the number in .ci/part in its last commit, which is HEAD where a landing is
    tested.
    """
    landings = _git("log", "--format=%H", "--", PART.relative_to(ROOT).as_posix())
    before = [commit for commit in landings if commit not in _git("rev-parse", "HEAD")]
    here = _git("diff", "--name-only", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    since = _git("log", "--format=", "--name-only", f"{before[0]}..HEAD") if before else []
    return [file for file in dict.fromkeys(here + since) if (ROOT / file).exists()]


def _git(*arguments: str) -> list[str]:
    command = ["git", "-c", "core.quotepath=off", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
