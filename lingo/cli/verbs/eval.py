"""Evaluates a checkpoint of a run on all its evaluation inputs.

    lingo eval --run=runs/tiny
    lingo eval --run=runs/tiny --step=200
    lingo eval --run=runs/tiny --set="eval_inputs['heldout'].max_batches=None"

It prints a line for each input, and adds it to `eval_<input>/` in the directory of the run. A run
that is still training is not disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from absl import flags

from lingo.cli import choice, command
from lingo.cli.command import UsageError
from lingo.errors import LingoError
from lingo.lazy import tf
from lingo.train.record.run_directory import RunDirectory
from lingo.train.trained import Trained

WORD = ""


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    choice.define_run(values)
    command.integer("step", "The checkpoint of this step; else the latest.", values, lower_bound=0)


def run(values: flags.FlagValues, word: str) -> int:
    """Prints and keeps the metrics of every evaluation input."""
    del word
    if values.run is None:
        raise UsageError("no run given: --run=DIR.")
    chosen = choice.of_run(values.run, values.set, values.trust, choice.places(values))
    directory = RunDirectory(values.run)
    if not choice.built(chosen).eval_inputs:
        raise UsageError(f"{values.run} has no eval_inputs to evaluate on.")
    model = Trained(chosen.params, directory, step=values.step)
    for damaged in model.checkpoint.passed_over:
        choice.note(f"passed over: {damaged}")
    for name, results in model.evaluate().items():
        shown = "  ".join(f"{metric}={value:.6g}" for metric, value in results.items())
        print(f"{name}  step={model.step}  {shown}")
        _keep(directory, name, model.step, results)
    return 0


def _keep(directory: RunDirectory, name: str, step: int, results: Mapping[str, float]) -> None:
    """Adds results to `eval_<name>/`: a row, and TensorBoard events."""
    folder = RunDirectory(directory.evaluation(name))
    tags = {f"eval/{metric}": value for metric, value in results.items()}
    try:
        folder.path.mkdir(exist_ok=True)
        folder.append_metrics({"step": step, "time": time.time(), **tags})
        with tf.summary.create_file_writer(str(folder.path)).as_default():
            for tag, value in tags.items():
                tf.summary.scalar(tag, value, step=step)
            tf.summary.flush()
    except (LingoError, OSError, tf.errors.OpError) as error:
        choice.note(f"the results are not kept: {error}")
