"""`python -m tools.studies NAME`: runs the trials of a study that have no result, for a while.

    python -m tools.studies images --minutes=30     each result becomes a line of docs/results
    python -m tools.studies images --page           writes tables and pictures of the page again

It returns 0 if no trial is left, 3 if the time was over before.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import pkgutil
import sys
from pathlib import Path

from tools.studies.page import fill_tables
from tools.studies.run import run
from tools.studies.trial import Results

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
    parser.add_argument("study", choices=names)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no trial starts later")
    parser.add_argument("--workers", type=int, help="trials at a time")
    parser.add_argument("--page", action="store_true", help="only write the page")
    values = parser.parse_args(arguments)
    study = importlib.import_module(f"tools.studies.{values.study}")
    path = RESULTS / f"{values.study}.jsonl"
    results = Results(path)
    for result in results.stale:
        print(f"its configuration has changed, delete its line: {result.trial}", file=sys.stderr)
    is_finished = True
    if not values.page:
        is_finished = run(
            study.trials,
            results,
            folder=RUNS / values.study,
            num_workers=values.workers or getattr(study, "NUM_WORKERS", os.cpu_count() or 1),
            seconds=60 * values.minutes,
            measure=getattr(study, "measure", None),
        )
        results = Results(path)  # also those of other processes
    page: Path = study.PAGE
    page.write_text(fill_tables(page.read_text(), study.tables(results)))
    if draw := getattr(study, "draw", None):
        draw(results, page.parent / "images")
    return 0 if is_finished else UNFINISHED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
