"""Results of evaluations that another process makes while a run trains (`lingo eval`).

eval_<name>/metrics.jsonl       one flat object per evaluation: TensorBoard tags, `step` and `time`
eval_<name>/events.out...       the same numbers, beside those that training writes
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from lingo.storage.rows import Rows
from lingo.trainer.directory.run_directory import METRICS, RunDirectory
from lingo.trainer.summaries.events import Events


def write_evaluations(
    run: RunDirectory, step: int, evaluations: Mapping[str, Mapping[str, float]]
) -> None:
    """Adds evaluations to a run's directory; needs no lock, as training writes other files.

    A failure to write is a warning.

    Args:
        run: the run directory.
        step: the step of the checkpoint.
        evaluations: name -> {tag: value}.
    """
    events = Events(run.path)
    for name, results in evaluations.items():
        folder = run.evaluation(name)
        events.add_scalars(folder, step, results)
        row = {"step": int(step), "time": time.time(), **results}
        rows = Rows(folder / METRICS)
        with events.warn_on_failure(rows.path):
            rows.append(row)


def evaluated_steps(run: RunDirectory, names: Iterable[str]) -> set[int]:
    """Returns the steps at which another process has evaluated all of these inputs."""
    found = [{row["step"] for row in Rows(run.evaluation(name) / METRICS).read()} for name in names]
    return set.intersection(*found) if found else set()
