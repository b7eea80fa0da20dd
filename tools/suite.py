"""Runs the test suite in tiers, and keeps the list of slow tests.

    python -m tools.suite quick            every test but the slow ones: what `make test` runs
    python -m tools.suite slow             the slow ones: what `make test-all` adds
    python -m tools.suite grid             more forms of these and of tests/faults: `make grid`
    python -m tools.suite mark             writes tests/slow.txt from the times of the last runs

TensorFlow and JAX keep every function that a process has compiled, so a tier runs one pytest for
each group of folders. Each run leaves its times in artifacts/suite/.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SLOW = ROOT / "tests" / "slow.txt"
TIMES = ROOT / "artifacts" / "suite"

SLOW_SECONDS = 1.5  # a test that takes longer is slow
MAX_SECONDS = 5.0  # a quick test takes no longer: what several tests share would be made twice
NUM_SLOWEST = 40
KILOBYTES_PER_GB = 1024**2

GROUPS = {
    "layers": ("tests/lingo/layers", "tests/lingo/ops"),
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
    "rest": ("tests",),
}
"""Folders and files that one pytest runs, by name; each leaves out what others have inside it.

Runtimes and exports import JAX, whose threads forbid what tests in `rest` do: fork.
"""

TIERS = {
    "quick": "not slow and not docs and not faults and not grid",
    "slow": "slow and not docs and not faults and not grid",
    "grid": "grid",
}
"""pytest's expression for the tests of a tier."""

NO_TESTS = 5  # pytest's exit code


class Time(NamedTuple):
    """How long a test took."""

    seconds: float  # of setup, call and teardown together
    test: str  # its id, as pytest prints it


def main(arguments: list[str]) -> int:
    """Runs a tier or writes the list; returns the exit code."""
    if arguments == ["mark"]:
        return mark()
    if len(arguments) != 1 or arguments[0] not in TIERS:
        print(__doc__, file=sys.stderr)
        return 2
    return run_tier(arguments[0])


def run_tier(tier: str) -> int:
    """Runs every group of a tier, prints what each took, and returns 1 if a test failed."""
    TIMES.mkdir(parents=True, exist_ok=True)
    lines, failed = [], []
    for group, folders in GROUPS.items():
        start = time.monotonic()
        code, peak_gb = run_group(tier, group, folders)
        seconds = time.monotonic() - start
        lines.append(f"{group:10} {seconds:6.0f} s {peak_gb:5.1f} GB")
        if code not in (0, NO_TESTS):
            failed.append(group)
    slowest = sorted(read_times(tier), reverse=True)[:NUM_SLOWEST]
    table = "".join(f"{time.seconds:7.1f} s  {time.test}\n" for time in slowest)
    (TIMES / f"{tier}_slowest.txt").write_text(table)
    print(f"\n{tier} tier:", *lines, sep="\n")
    print(f"slowest tests: {(TIMES / f'{tier}_slowest.txt').relative_to(ROOT)}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def run_group(tier: str, group: str, folders: tuple[str, ...]) -> tuple[int, float]:
    """Runs pytest on a group; returns its exit code and the peak memory of a process in GB."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist=loadgroup", "-m", TIERS[tier]]
    command += [f"--junitxml={TIMES / f'{tier}_{group}.xml'}"]
    others = [path for name, paths in GROUPS.items() if name != group for path in paths]
    inside = [path for path in others if path.startswith(tuple(f"{f}/" for f in folders))]
    if tier == "slow":  # only the files that have some: to collect all tests takes a minute
        files = [file for file in slow_files() if _is_in(file, folders)]
        command += [file for file in files if not _is_in(file, inside)]
    else:
        command += [*folders, *(f"--ignore={path}" for path in inside)]
    process = subprocess.Popen(command, cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss / KILOBYTES_PER_GB


def slow_files() -> list[str]:
    """Returns the files of slow tests, sorted."""
    return sorted({test.partition("::")[0] for test in SLOW.read_text().splitlines()})


def _is_in(file: str, places: Iterable[str]) -> bool:
    return any(file == place or file.startswith(f"{place}/") for place in places)


def read_times(tier: str) -> list[Time]:
    """Returns the time of each test in the last run of a tier."""
    times = []
    for file in sorted(TIMES.glob(f"{tier}_*.xml")):
        for case in ElementTree.parse(file).iter("testcase"):
            path = f"{case.get('classname', '').replace('.', '/')}.py"
            name = re.sub(r"@\w+$", "", case.get("name", ""))  # pytest-xdist appends the group
            times.append(Time(float(case.get("time", 0)), f"{path}::{name}"))
    return times


def mark() -> int:
    """Writes tests/slow.txt: the tests over SLOW_SECONDS, and those that it lists.

    Those are faster only after another that made what they share. One of the others of each module
    stays quick, if it takes no longer than MAX_SECONDS.
    """
    tiers = [read_times(tier) for tier in ("quick", "slow")]
    if not all(tiers):  # the slow tests of a tier without times would be lost
        print("no times: run `python -m tools.suite quick` and `slow` first", file=sys.stderr)
        return 1
    times = [time for tier in tiers for time in tier]
    slow = slow_tests(times, SLOW.read_text().splitlines())
    SLOW.write_text("".join(f"{test}\n" for test in slow))
    print(f"{len(slow)} of {len(times)} tests are slow")
    return 0


def slow_tests(times: list[Time], listed: Collection[str]) -> list[str]:
    """Returns the ids of slow tests, as `mark` says, sorted; `listed` are those before."""
    slow = {time.test for time in times if time.seconds > SLOW_SECONDS}
    slow |= {time.test for time in times} & {*listed}
    modules: dict[str, list[Time]] = {}
    for time_ in times:
        modules.setdefault(time_.test.partition("::")[0], []).append(time_)
    for tests in modules.values():
        others = [time for time in tests if time.test not in listed]
        if others and all(time.test in slow for time in tests):
            quickest = min(others)
            if quickest.seconds <= MAX_SECONDS:
                slow.discard(quickest.test)
    return sorted(slow)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
