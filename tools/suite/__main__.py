"""Runs the test suite in tiers, and keeps the list of slow tests.

    python -m tools.suite quick        every test but the slow ones: what `make test` runs
    python -m tools.suite core         the slow ones among those that tests/promises.md names
    python -m tools.suite changed      slow ones of the files that changed since the last landing
    python -m tools.suite part [K]     part K, or that in .ci/part, of the slow ones without promise
    python -m tools.suite slow PLACE   the slow ones in folders and files
    python -m tools.suite ci           lint, types, quick, core, changed and the part: `.ci/run`
    python -m tools.suite all          lint, types and every test; a line of results
    python -m tools.suite mark         writes tests/slow.txt from the times of the last runs

Each run leaves the times of its tests in artifacts/suite/; the line of results is one of
docs/results/suite.jsonl.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tools.source_tree import ROOT
from tools.suite import runs, selection, slow_list
from tools.suite.runs import Outcome

RESULTS = ROOT / "docs" / "results" / "suite.jsonl"
REST = "slow and not core"  # pytest's expression for slow tests without promise

Stage = Callable[[], Outcome]


def main(arguments: list[str]) -> int:
    """Runs what is named; returns the exit code."""
    match arguments:
        case ["quick" | "core" | "changed" as name]:
            return run_stages({name: STAGES[name]})
        case ["part"]:
            return run_stages(_current_part())
        case ["part", number] if number.isdecimal() and int(number) < selection.NUM_PARTS:
            return run_stages({f"part {number}": partial(run_part, int(number))})
        case ["slow", *places] if places:
            return run_stages({"slow": partial(runs.run, "slow", "slow", _files_in(places))})
        case ["ci"]:
            return run_stages(STAGES | _current_part())
        case ["all"]:
            return run_all()
        case ["mark"]:
            return mark()
    print(__doc__, file=sys.stderr)
    return 2


# ---- stages --------------------------------------------------------------------------------------


def run_stages(stages: Mapping[str, Stage]) -> int:
    """Runs stages one after the other, prints what each took; returns 1 if any failed, else 0."""
    return _report({name: stage() for name, stage in stages.items()})


def run_all() -> int:
    """Runs lint, types and every test, and appends a line to docs/results/suite.jsonl."""
    stages = {name: stage for name, stage in STAGES.items() if name != "changed"}
    stages |= {f"part {part}": partial(run_part, part) for part in range(selection.NUM_PARTS)}
    outcomes = {name: stage() for name, stage in stages.items()}
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    line = {
        "commit": commit.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": _processor(),
        "minutes": {name: round(outcome.minutes, 1) for name, outcome in outcomes.items()},
        "passed": sum(outcome.num_passed for outcome in outcomes.values()),
        "failed": [test for outcome in outcomes.values() for test in outcome.failures],
    }
    with RESULTS.open("a") as file:
        file.write(f"{json.dumps(line)}\n")
    return _report(outcomes)


def run_quick() -> Outcome:
    """Runs every quick test."""
    return runs.run("quick", "not slow", selection.test_files(), merged=True)


def run_core() -> Outcome:
    """Runs the slow tests among those that hold promises."""
    files = dict.fromkeys(test.partition("::")[0] for test in selection.promised_tests())
    return runs.run("core", "core and slow", [f for f in selection.test_files() if f in files])


def run_changed() -> Outcome:
    """Runs slow tests of the files that changed, as many as there is time for; prints which."""
    found = selection.changed_tests(selection.changed_files())
    print("\nslow tests of changed files:")
    print(*(f"  {test}  ({file})" for test, file in found.tests.items()), sep="\n")
    if found.rest:
        print("left to the parts, since they would take too long here:")
        print(*(f"  {test}  ({file})" for test, file in found.rest.items()), sep="\n")
    sys.stdout.flush()
    return runs.run("changed", REST, found.tests)


def run_part(part: int) -> Outcome:
    """Runs a part of the slow tests that hold no promise."""
    return runs.run(f"part {part}", REST, selection.part_targets(part))


def run_make(target: str) -> Outcome:
    """Makes a target of the Makefile."""
    began = time.monotonic()
    done = subprocess.run(["make", target], cwd=ROOT)
    minutes = (time.monotonic() - began) / 60
    return Outcome(failures=(f"make {target}",) if done.returncode else (), minutes=minutes)


STAGES: dict[str, Stage] = {
    "lint": partial(run_make, "lint"),
    "types": partial(run_make, "types"),
    "quick": run_quick,
    "core": run_core,
    "changed": run_changed,
}


def _current_part() -> dict[str, Stage]:
    part = selection.current_part()
    return {f"part {part}": partial(run_part, part)}


def _files_in(places: list[str]) -> list[str]:
    files = [
        file
        for file in selection.test_files()
        if any(file == place or file.startswith(f"{place.rstrip('/')}/") for place in places)
    ]
    if not files:
        raise SystemExit(f"no files of tests in {', '.join(places)}")
    return files


def _report(outcomes: Mapping[str, Outcome]) -> int:
    """Prints a line for each stage, and the tests that failed; returns 1 if any did, else 0."""
    print(f"\n{'stage':10} {'minutes':>8} {'GB':>5} {'passed':>7} {'failed':>7}")
    for name, outcome in outcomes.items():
        gb = f"{outcome.peak_gb:.1f}" if outcome.peak_gb else ""
        numbers = f"{outcome.num_passed:7} {len(outcome.failures):7}"
        print(f"{name:10} {outcome.minutes:8.1f} {gb:>5} {numbers}")
    total = sum(outcome.minutes for outcome in outcomes.values())
    print(f"{'together':10} {total:8.1f}")
    failed = [test for outcome in outcomes.values() for test in outcome.failures]
    print(*(f"failed: {test}" for test in failed), sep="\n", flush=True)
    return int(bool(failed))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())


# ---- the list of slow tests ----------------------------------------------------------------------


def mark() -> int:
    """Writes tests/slow.txt; returns the exit code."""
    times = runs.read_times()
    if not times:
        print("no times: run `python -m tools.suite quick` first", file=sys.stderr)
        return 1
    tests = slow_list.update(slow_list.read(), times, runs.collect())
    slow_list.write(tests)
    print(f"{len(tests)} tests are slow: {sum(tests.values()) / 60:.0f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
