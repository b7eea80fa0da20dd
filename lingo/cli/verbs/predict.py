"""Writes what a trained model predicts for the examples of an input or a file.

    lingo predict --run=runs/tiny --input=heldout --output=heldout.npz
    lingo predict --run=runs/tiny --input=heldout --output=heldout.jsonl --step=best
    lingo predict --run=runs/tiny --input=mine.npz --output=predictions.npz --batch_size=8
    lingo predict --run=runs/tiny --input=mine.jsonl --output=predictions.jsonl

The input is an evaluation input of the run, which --set may change, or a file with the arrays of
`train_input.batch(0)`; arrays that only the loss reads may be missing. A file is a .npz of NumPy,
with an array for each name, or a .jsonl, with an object for each example. The output has the arrays
that the task's `predict` returns, in the order of the input; for an evaluation input also
`example_id`, the index of each example. It appears only when it is complete, and no file is
overwritten. Only one batch of predictions is in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lingo.cli import experiment_options
from lingo.cli.command import UsageError, new_output
from lingo.cli.experiment_options import DeviceOptions, RunOptions
from lingo.cli.options import StepOptions
from lingo.config.options import option, option_class
from lingo.config.params import suggest
from lingo.contract import Experiment, build_experiment
from lingo.storage.examples import SUFFIXES, read_examples, write_examples
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation.predict import PredictOptions
from lingo.trainer.progress import Progress
from lingo.trainer.trained import Trained

_FILE = " or ".join(f"FILE{suffix}" for suffix in SUFFIXES)


@option_class
class Options(PredictOptions, StepOptions, RunOptions, DeviceOptions):
    """The options of `lingo predict`."""

    input: str | None = option(f"An evaluation input of the run, or {_FILE}.")
    output: str | None = option(f"The new file of the predictions: {_FILE}.")


def run(options: Options) -> int:
    """Computes the predictions and writes them into the output."""
    run, name, output = _check(options)
    resolved = options.resolve_run()
    experiment = build_experiment(resolved)
    arrays = _read(name, experiment)
    options.make_devices(resolved.params)
    with experiment.runtime.join() as processes:
        model = Trained(resolved.params, RunDirectory(run), step=options.step)
        experiment_options.print_later_errors(model.checkpoint)
        inputs = model.experiment.eval_inputs[name] if arrays is None else arrays
        with contextlib.ExitStack() as stack:
            progress = stack.enter_context(Progress(max_steps=1, enabled=processes.is_leader))
            add = stack.enter_context(write_examples(output)) if processes.is_leader else None
            advance = stack.enter_context(progress.work(f"predicting {name}"))
            shapes: dict[str, str] = {}
            num_examples = 0
            for batch in model.predict(
                inputs, batch_size=options.batch_size, stream=True, progress=advance
            ):
                shapes = {name: f"{a.dtype} {list(a.shape[1:])}" for name, a in batch.items()}
                num_examples += len(next(iter(batch.values())))
                if add is not None:
                    add(batch)
    if processes.is_leader:
        print(f"{output}: {num_examples:,} examples at step {model.step}")
        for array, shape in shapes.items():
            print(f"  {array}: {shape} for each")
    return 0


def _check(options: Options) -> tuple[str, str, Path]:
    """Returns --run, --input and --output; raises UsageError for a mistake in the flags."""
    run = options.require_run()
    if options.input is None:
        raise UsageError(f"no input given: --input=NAME, an evaluation input, or {_FILE}")
    if options.output is None:
        raise UsageError(f"no output given: --output={_FILE}")
    if Path(options.output).suffix not in SUFFIXES:
        raise UsageError(f"--output={options.output} is not the name of a {_FILE}")
    return run, options.input, new_output(options.output, "file")


def _read(name: str, experiment: Experiment) -> Mapping[str, np.ndarray] | None:
    """Returns the arrays in the file `name`; None if it is the name of an evaluation input."""
    names = experiment.eval_inputs
    if name in names:
        return None
    if Path(name).suffix not in SUFFIXES:
        raise UsageError(
            f"--input={name} is neither an evaluation input ({', '.join(names) or 'it has none'})"
            f" nor a {_FILE}.{suggest(name, names)}"
        )
    return read_examples(Path(name))
