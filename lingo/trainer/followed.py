"""Gives evaluations to a training input whose later batches depend on them.

    follow_evaluations(run)                     # at the start, and after an evaluation or rewind
    items.restart(...)                          # then batches that were made ahead are made again

The evaluations are read from metrics.jsonl, whose rows after a checkpoint are removed when a run
goes back to it. So the batches are a function of the run's counters and of these rows, and a run
resumes exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from lingo.config.params import ParamError, suggest
from lingo.contract import Experiment
from lingo.data.task_schedule import Evaluated
from lingo.trainer.directory.run_directory import row_tag
from lingo.trainer.live_run import LiveRun


def follow_evaluations(run: LiveRun) -> bool:
    """Gives all evaluations up to the current step to the training input; False: it follows none.

    All processes must call this together.
    """
    data, counters = run.experiment.train_input, run.recorder.counters
    if not data.followed_metrics():
        return False
    own = json.dumps(_read(run, counters.step)) if run.processes.is_leader else None
    with run.watchdog.pause():
        shared = json.loads(run.processes.share("evaluations", own))
    data.follow([Evaluated(step + counters.offset, metrics) for step, metrics in shared])
    return True


def _read(run: LiveRun, last: int) -> list[tuple[int, dict[str, float]]]:
    """Returns (step, {followed metric: value}) of the run's evaluations up to the step `last`."""
    tags, evaluations = _tags(run.experiment), run.experiment.evaluations
    found: dict[int, dict[str, float]] = {}
    for row in run.directory.metrics.read():
        step = row["step"]
        if step > last or not evaluations.is_due(step):  # such as one by another command
            continue
        for metric, tag in tags.items():
            if (value := row.get(tag)) is not None and math.isfinite(value):
                found.setdefault(step, {})[metric] = value
    return sorted(found.items())


def _tags(experiment: Experiment) -> dict[str, str]:
    """Returns the key in metrics.jsonl of each metric that the training input follows."""
    first, tags = next(iter(experiment.eval_inputs), ""), dict[str, str]()
    for followed in experiment.train_input.followed_metrics():
        name, _, metric = followed.partition("/")
        tags[followed] = row_tag(f"eval/{metric}", name, first=name == first)
    return tags


def check_followed(experiment: Experiment, results: Mapping[str, Mapping[str, float]]) -> None:
    """Raises ParamError if results, input -> {metric: value}, lack a metric that is followed.

    It is also raised if the run counts epochs, which then depend on the evaluations themselves.
    """
    counts_epochs = experiment.counts_epochs or experiment.p.evaluate.every_epochs is not None
    if experiment.train_input.followed_metrics() and counts_epochs:
        raise ParamError(
            "train_input follows evaluations, so epochs are not known in advance: count steps, by"
            " max_steps and evaluate.every_steps"
        )
    for followed in experiment.train_input.followed_metrics():
        name, _, metric = followed.partition("/")
        if metric not in (there := results.get(name, {})):
            known = [f"{input}/{one}" for input, metrics in results.items() for one in metrics]
            listed = ", ".join(there or results)
            raise ParamError(
                f"train_input follows {followed!r}, but evaluations have no such metric:"
                f" {listed or 'eval_inputs is empty'}.{suggest(followed, known)}"
            )
