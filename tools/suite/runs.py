"""Runs of pytest: one for each group of files, on two processes.

TensorFlow and JAX keep every function that a process has compiled, so that one process for all
tests would take all memory. Runtimes and exports import JAX, whose threads forbid what other tests
do: fork.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.source_tree import ROOT
from tools.suite.slow_list import Time

TIMES = ROOT / "artifacts" / "suite"
KILOBYTES_PER_GB = 1024**2
NO_TESTS = 5  # pytest's exit code

GROUPS = {
    "layers": ("tests/lingo/layers", "tests/lingo/models", "tests/lingo/ops"),
    "images": (
        "tests/lingo/runtimes/mesh/test_split_images.py",
        "tests/lingo/runtimes/mesh/test_split_networks.py",
    ),
    "plans": ("tests/lingo/runtimes/mesh/test_plan.py",),
    "meshes": ("tests/lingo/runtimes/mesh",),
    "runtimes": ("tests/lingo/runtimes",),
    "exports": (
        "tests/lingo/export",
        "tests/lingo/cli/verbs/test_export.py",
        "tests/lingo/decode",
        "tests/tasks",
    ),
    "trainer": ("tests/lingo/trainer", "tests/lingo/checkpoints", "tests/lingo/learner"),
    "params": ("tests/params", "tests/lingo/serving"),
    "attacks": ("tests/faults/test_promise_13_serving.py",),
    "faults": ("tests/faults",),
    "documents": ("tests/test_docs.py", "tests/test_notebooks.py", "tests/test_site.py"),
    "rest": ("tests",),
}
"""Folders and files of each group; a file is in the first that has it."""

QUICK_GROUPS = {
    **dict.fromkeys(("images", "plans", "meshes", "exports"), "runtimes"),
    **dict.fromkeys(("params",), "trainer"),
    **dict.fromkeys(("attacks", "faults", "documents"), "rest"),
}
"""Groups that have so few quick tests that another group's run has them, by name."""

TWO = ("-n", "2", "--dist=loadgroup")
WORKERS = {
    "attacks": (),  # they measure how soon a server answers: alone
    "faults": ("-n", "3", "--dist=worksteal"),  # they wait for processes that sleep
}


class Outcome(NamedTuple):
    """What came of a number of tests."""

    num_passed: int = 0
    failures: tuple[str, ...] = ()  # ids; the group's name if pytest itself failed
    minutes: float = 0.0
    peak_gb: float = 0.0  # the largest process


def run(name: str, expression: str, targets: Iterable[str], *, merged: bool = False) -> Outcome:
    """Runs the tests of some files that a marker expression selects; prints what each group took.

    Args:
        name: of the run; the times of its tests are in artifacts/suite/<name>_<group>.xml.
        expression: as `pytest -m` takes it.
        targets: paths of files, or ids of tests.
        merged: whether groups with few quick tests share a run.
    """
    TIMES.mkdir(parents=True, exist_ok=True)
    for old in TIMES.glob(f"{name}_*.xml"):
        old.unlink()
    groups: dict[str, list[str]] = {}
    for target in targets:
        group = group_of(target)
        groups.setdefault(QUICK_GROUPS.get(group, group) if merged else group, []).append(target)
    outcome, lines = Outcome(), []
    for group, members in groups.items():
        found = _run_group(group, expression, members, TIMES / f"{name}_{group}.xml")
        lines.append(f"{group:10} {found.minutes:6.1f} minutes {found.peak_gb:5.1f} GB")
        outcome = Outcome(
            outcome.num_passed + found.num_passed,
            outcome.failures + found.failures,
            outcome.minutes + found.minutes,
            max(outcome.peak_gb, found.peak_gb),
        )
    print(f"\n{name}:", *lines, sep="\n", flush=True)
    return outcome


def group_of(target: str) -> str:
    """Returns the group of a file or of a test's id."""
    file = target.partition("::")[0]
    return next(
        name
        for name, places in GROUPS.items()
        if any(file == place or file.startswith(f"{place}/") for place in places)
    )


def _run_group(group: str, expression: str, targets: Sequence[str], file: Path) -> Outcome:
    options = [*WORKERS.get(group, TWO), "-m", expression, f"--junitxml={file}"]
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "pytest", *options, *targets], cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    minutes = (time.monotonic() - began) / 60
    code = os.waitstatus_to_exitcode(status)
    cases = [*_read_cases(file)] if file.exists() else []
    failed = tuple(id_ for id_, case in cases if _has_failed(case))
    if code not in (0, NO_TESTS) and not failed:
        failed = (group,)
    passed = sum(case.find("skipped") is None and not _has_failed(case) for _, case in cases)
    return Outcome(passed, failed, minutes, usage.ru_maxrss / KILOBYTES_PER_GB)


def read_times() -> list[Time]:
    """Returns the time of each test in the last runs."""
    return [
        Time(float(case.get("time", 0)), test)
        for file in sorted(TIMES.glob("*.xml"), key=lambda file: file.stat().st_mtime)
        for test, case in _read_cases(file)
    ]


def _read_cases(file: Path) -> Iterator[tuple[str, ElementTree.Element]]:
    """Yields the id and the element of each test."""
    for case in ElementTree.parse(file).iter("testcase"):
        path = f"{case.get('classname', '').replace('.', '/')}.py"
        name = re.sub(r"@\w+$", "", case.get("name", ""))  # pytest-xdist appends the group
        yield f"{path}::{name}", case


def _has_failed(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def collect() -> list[str]:
    """Returns the ids of all tests."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]
