"""`python -m tools.studies NAME`: runs the trials of a study that have no result, for a while.

    python -m tools.studies images --minutes=30     each result becomes a line of docs/results
    python -m tools.studies images --page           writes tables and pictures of the page again
    python -m tools.studies all --page              writes docs/studies.md: what is missing

It returns 0 if no trial is left, 3 if the time was over before.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import pkgutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.studies.page import fill_tables
from tools.studies.run import run
from tools.studies.trial import Results, identity

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "docs" / "results"
RUNS = ROOT / "artifacts" / "studies"

UNFINISHED = 3

_NOT_STUDIES = ("__main__", "batches", "page", "run", "trial")


def main(arguments: list[str]) -> int:
    """Runs a study or writes its page; returns the exit code."""
    names = [
        m.name
        for m in pkgutil.iter_modules([str(Path(__file__).parent)])
        if m.name not in _NOT_STUDIES
    ]
    parser = argparse.ArgumentParser("python -m tools.studies", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("study", choices=[*names, "all"])
    parser.add_argument("--minutes", type=float, default=math.inf, help="no trial starts later")
    parser.add_argument("--workers", type=int, help="trials at a time")
    parser.add_argument("--page", action="store_true", help="only write the page")
    values = parser.parse_args(arguments)
    if values.study == "all":
        if not values.page:
            parser.error("all studies take days: run one, or write what is missing by --page")
        fill_overview(names)
        return 0
    study = importlib.import_module(f"tools.studies.{values.study}")
    path = path_of(values.study)
    results = Results(path)
    for result in results.stale:
        print(f"its configuration has changed, delete its line: {result.trial}", file=sys.stderr)
    is_finished = True
    if not values.page:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        is_finished = run(
            study.trials,
            results,
            folder=RUNS / values.study,
            num_workers=values.workers or getattr(study, "NUM_WORKERS", os.cpu_count() or 1),
            seconds=60 * values.minutes,
            measure=getattr(study, "measure", None),
        )
        results = Results(path)  # other processes may have added some
    page: Path = study.PAGE
    page.write_text(fill_tables(page.read_text(), study.tables(results)))
    if draw := getattr(study, "draw", None):
        draw(results, page.parent / "images")
    fill_overview(names)
    return 0 if is_finished else UNFINISHED


def fill_overview(names: Sequence[str]) -> None:
    """Writes how many trainings each study has done, and misses, into docs/studies.md."""
    rows: list[str] = []
    for name in names:
        study, results = importlib.import_module(f"tools.studies.{name}"), Results(path_of(name))
        missing = {identity(trial) for trial in study.trials(results) if not results.get(trial)}
        page = study.PAGE.name
        left = f"at least {len(missing)}" if missing else "0"
        command = f"`python -m tools.studies {name}`"
        rows.append(f"| [{name}]({page}) | {len(list(results))} | {left} | {command} |")
    overview = RESULTS.parent / "studies.md"
    head = ["| study | trainings done | missing | command |", "|---|---|---|---|"]
    overview.write_text(fill_tables(overview.read_text(), {"studies": [*head, *rows]}))


def path_of(name: str) -> Path:
    """Returns the file of a study's results."""
    return RESULTS / f"{name}.jsonl"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
