"""Writes what a trained model predicts for the examples of an input or a file.

    lingo predict --run=runs/tiny --input=heldout --output=heldout.npz
    lingo predict --run=runs/tiny --input=heldout --output=heldout.jsonl --step=best
    lingo predict --run=runs/tiny --input=mine.npz --output=predictions.npz --batch_size=8
    lingo predict --run=runs/tiny --input=mine.jsonl --output=predictions.jsonl

The input is an evaluation input of the run, which --set may change, or a file with arrays as
`train_input.batch(0)` has them; what only the loss reads may be missing. A file is a .npz of NumPy,
with an array for each name, or a .jsonl, with an object for each example. The output has what the
`predict` of the task returns, in the order of the input; for an evaluation input also `example_id`,
the index of each example. It appears only when it is complete, and no file is overwritten. Only one
batch of predictions is in memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from absl import flags

from lingo.cli import command, experiment_flags
from lingo.cli.command import UsageError
from lingo.config.params import suggest
from lingo.contract import Experiment, build_experiment
from lingo.storage.examples import SUFFIXES, read_examples, write_examples
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.progress import Progress
from lingo.trainer.trained import Trained

WORD = ""  # it takes no word beside its flags

_FILE = " or ".join(f"FILE{suffix}" for suffix in SUFFIXES)


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    experiment_flags.define_run(values)
    experiment_flags.define_devices(values)
    experiment_flags.define_step(values)
    command.string("input", f"An evaluation input of the run, or {_FILE}.", values)
    command.string("output", f"The new file of the predictions: {_FILE}.", values)
    command.integer(
        "batch_size",
        "Examples to compute at a time (default: those of the input; of a file, of the training).",
        values,
        lower_bound=1,
    )


def run(values: flags.FlagValues, word: str) -> int:
    """Computes the predictions and writes them into the output."""
    del word
    output = _check(values)
    step = experiment_flags.read_step(values.step)
    resolved = experiment_flags.resolve_run(values, values.set)
    experiment = build_experiment(resolved)
    arrays = _read(values.input, experiment)
    experiment_flags.make_devices(values, resolved.params)
    with experiment.runtime.join() as processes:
        model = Trained(resolved.params, RunDirectory(values.run), step=step)
        experiment_flags.print_later_errors(model.checkpoint)
        inputs = model.experiment.eval_inputs[values.input] if arrays is None else arrays
        with contextlib.ExitStack() as stack:
            progress = stack.enter_context(Progress(max_steps=1, enabled=processes.is_leader))
            add = stack.enter_context(write_examples(output)) if processes.is_leader else None
            advance = stack.enter_context(progress.work(f"predicting {values.input}"))
            shapes: dict[str, str] = {}
            num_examples = 0
            for batch in model.predict(
                inputs, batch_size=values.batch_size, stream=True, progress=advance
            ):
                shapes = {name: f"{a.dtype} {list(a.shape[1:])}" for name, a in batch.items()}
                num_examples += len(next(iter(batch.values())))
                if add is not None:
                    add(batch)
    if processes.is_leader:
        print(f"{output}: {num_examples:,} examples at step {model.step}")
        for name, shape in shapes.items():
            print(f"  {name}: {shape} for each")
    return 0


def _check(values: flags.FlagValues) -> Path:
    """Returns the path of the output; raises UsageError for a mistake in the flags."""
    if values.run is None:
        raise UsageError("no run given: --run=DIR")
    if values.input is None:
        raise UsageError(f"no input given: --input=NAME, an evaluation input, or {_FILE}")
    if values.output is None:
        raise UsageError(f"no output given: --output={_FILE}")
    output = Path(values.output)
    if output.suffix not in SUFFIXES:
        raise UsageError(f"--output={output} is not the name of a {_FILE}")
    if os.path.lexists(output):
        raise UsageError(f"--output={output} exists: name another file, or remove it")
    if not output.parent.is_dir():
        raise UsageError(f"--output={output}: there is no directory {output.parent}")
    return output


def _read(name: str, experiment: Experiment) -> Mapping[str, np.ndarray] | None:
    """Returns the arrays of the file of that name; None if it is an evaluation input."""
    names = experiment.eval_inputs
    if name in names:
        return None
    if Path(name).suffix not in SUFFIXES:
        raise UsageError(
            f"--input={name} is neither an evaluation input ({', '.join(names) or 'there is none'})"
            f" nor a {_FILE}.{suggest(name, names)}"
        )
    return read_examples(Path(name))
