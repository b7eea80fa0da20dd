"""Lists the runs below a directory: state, step, metric, age, tags and note.

    lingo runs                              those below ./runs
    lingo runs DIR --tag=baseline           those with a tag
    lingo runs DIR --metric=heldout/loss    by this metric; else by `evaluate.metric`, or the loss
    lingo runs DIR --csv > runs.csv

The latest report comes first. `lingo train --note='...' --tag=...` writes note and tags, also when
a run resumes.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lingo.cli.command import UsageError, VerbOptions
from lingo.cli.experiment_options import print_note
from lingo.config.options import option, option_class, word
from lingo.config.printable import escape_controls
from lingo.study.report import align
from lingo.study.runs import HEAD, cells, find_runs, summarize


@option_class
class Options(VerbOptions):
    """The options of `lingo runs`."""

    directory: str = word("[directory]")
    tag: Sequence[str] = option("Only runs with this tag, or with all of several.", default=())
    metric: str | None = option("`input/metric` of an evaluation, or a tag of a training report.")
    csv: bool = option("Print CSV, with times instead of ages.", default=False)


def run(options: Options) -> int:
    """Prints a row for each run."""
    folder = Path(options.directory or "runs")
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a directory: name the one that holds runs")
    found = [summarize(path, options.metric) for path in find_runs(folder)]
    if options.metric and found and all(one.value is None for one in found):
        print_note(
            f"no run has reported {options.metric!r}: write input/metric, such as heldout/loss, or"
            " the tag of a training report, such as loss/total"
        )
    found = [one for one in found if set(options.tag) <= set(one.notes.tags)]
    found.sort(key=lambda one: -one.updated)
    if options.csv:
        table = csv.writer(sys.stdout)
        table.writerow(HEAD)
        table.writerows(cells(one) for one in found)
    elif found:
        now = time.time()
        print(escape_controls("\n".join(align([HEAD, *(cells(one, now=now) for one in found)]))))
    else:
        print(f"no runs below {folder}" + " with these tags" * bool(options.tag))
    return 0
