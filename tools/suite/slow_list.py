"""The list of slow tests, tests/slow.txt: seconds and id of each, sorted by id.

Every other test is quick. `python -m tools.suite mark` writes the list from the times of the last
runs. A test that is slow for another reason than its time may be listed by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tools.source_tree import ROOT

SLOW = ROOT / "tests" / "slow.txt"

SLOW_SECONDS = 1.0  # a test that takes longer is slow
MAX_SECONDS = 2.5  # a quick test takes no longer: what several tests share would be made twice


class Time(NamedTuple):
    """How long a test took."""

    seconds: float  # of setup, call and teardown together
    test: str  # its id, as pytest prints it


def read(file: Path = SLOW) -> dict[str, float]:
    """Returns the seconds of each slow test, by id."""
    rows = (line.split(" ", 1) for line in file.read_text().splitlines())
    return {test: float(seconds) for seconds, test in rows}


def write(tests: Mapping[str, float], file: Path = SLOW) -> None:
    """Writes the list."""
    file.write_text("".join(f"{tests[test]:.1f} {test}\n" for test in sorted(tests)))


def update(
    listed: Mapping[str, float], times: Iterable[Time], existing: Collection[str]
) -> dict[str, float]:
    """Returns the list after some runs.

    A listed test stays: it may be fast only after another one that made what both need. One of the
    other tests of each file stays quick if it takes at most MAX_SECONDS.

    Args:
        listed: seconds by id, as `read` returns them.
        times: of the tests that ran.
        existing: ids of all tests; others leave the list.
    """
    seconds = {time.test: time.seconds for time in times}
    slow = {test for test, value in seconds.items() if value > SLOW_SECONDS} | {*listed}
    files: dict[str, list[str]] = {}
    for test in seconds:
        files.setdefault(test.partition("::")[0], []).append(test)
    for tests in files.values():
        others = [test for test in tests if test not in listed]
        if others and slow.issuperset(tests):
            quickest = min(others, key=lambda test: seconds[test])
            if seconds[quickest] <= MAX_SECONDS:
                slow.discard(quickest)
    return {test: seconds.get(test, listed.get(test, 0.0)) for test in slow & {*existing}}
