"""Writes what a trained model predicts for the examples of an input or a file.

    lingo predict --run=runs/tiny --input=heldout --output=heldout.npz
    lingo predict --run=runs/tiny --input=heldout --output=heldout.jsonl --step=best
    lingo predict --run=runs/tiny --input=mine.npz --output=predictions.npz --batch_size=8
    lingo predict --run=runs/tiny --input=mine.jsonl --output=predictions.jsonl
    lingo predict --run=runs/pets --input=photos
    lingo predict --run=runs/pets --input='photos/*.png' --output=predictions.csv
    lingo predict --run=runs/tones --input=clips --output=transcripts.jsonl
    lingo predict --run=runs/scenes --input=heldout --output=pictures/

The input is an evaluation input of the run, which --set may change; a file with the arrays of
`train_input.batch(0)`; or a path of files without labels. A file of arrays is a .npz of NumPy, with
an array for each name, or a .jsonl, with an object for each example; arrays that only the loss
reads may be missing. Files without labels are a file, a folder or a glob. The first evaluation
input decides how they are read: it cuts and resizes images as in an evaluation.

The output has the arrays that the task's `predict` returns, in the order of the input. For an
evaluation input it also has `example_id`, the index of each example; and `file`, if examples are in
files. A classifier's output has the name of the likeliest `class`, and its `probability`. A
recognizer's output has the file as `audio`, and the `text`; --ids adds the token ids of texts. A
.csv has only the arrays with one value for each example. An output that ends in / is a new folder
of pictures, one for each example of an evaluation input: what an evaluation shows in TensorBoard,
such as images with true and predicted boxes and masks. Without --output, the classes or texts of
files are printed as a table; --output=- prints lines of JSON. An output appears only when it is
complete, and no file is overwritten. Only one batch of predictions is in memory.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from lingo.cli import experiment_options
from lingo.cli.command import UsageError, new_output
from lingo.cli.experiment_options import DeviceOptions, RunOptions
from lingo.cli.options import StepOptions
from lingo.config.options import option, option_class
from lingo.config.params import suggest
from lingo.contract import Experiment, build_experiment
from lingo.data.files import open_file
from lingo.data.input import Input
from lingo.data.store import is_address
from lingo.storage.examples import (
    OUTPUT_SUFFIXES,
    SUFFIXES,
    Add,
    json_lines,
    parse_examples,
    read_examples,
    write_examples,
)
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation.pictures import write_pictures
from lingo.trainer.evaluation.predict import PredictOptions
from lingo.trainer.progress import Progress
from lingo.trainer.trained import Trained

_ARRAYS = " or ".join(f"FILE{suffix}" for suffix in SUFFIXES)
_OUTPUT = " or ".join(f"FILE{suffix}" for suffix in OUTPUT_SUFFIXES)
_STDOUT = Path("-")  # the output that is printed, a line of JSON for each example
_TABLES = (("file", "class", "probability"), ("audio", "text"))  # columns that are printed

Write = Callable[[Path], contextlib.AbstractContextManager[Add]]
"""Returns a context with a function that adds examples to a new output."""


@option_class
class Options(PredictOptions, StepOptions, RunOptions, DeviceOptions):
    """The options of `lingo predict`."""

    input: str | None = option(
        f"An evaluation input of the run, {_ARRAYS}, or files without labels: a path or glob."
    )
    output: str | None = option(
        f"The new file of the predictions: {_OUTPUT}; or FOLDER/, for a picture of each example;"
        " - prints lines of JSON. Without it, classes or texts of files are printed."
    )
    ids: bool = option("Write the token ids of texts, too.", default=False)


def run(options: Options) -> int:
    """Computes the predictions, and writes them into the output, or prints them."""
    run, name, output = _check(options)
    resolved = options.resolve_run()
    experiment = build_experiment(resolved)
    inputs = _read(name, experiment)
    _check_output(options, experiment, has_labels=inputs is None, is_path=isinstance(inputs, str))
    options.make_devices(resolved.params)
    with experiment.runtime.join() as processes:
        model = Trained(resolved.params, RunDirectory(run), step=options.step)
        experiment_options.print_later_errors(model.checkpoint)
        given = (
            _set_batch_size(model.experiment.eval_inputs[name], options.batch_size)
            if inputs is None
            else inputs
        )
        data = given if isinstance(given, Input) else model.experiment.prediction_input
        write: Write = write_examples
        if _is_folder(options.output):
            write = functools.partial(write_pictures, experiment=model.experiment, input=data)
        hidden = () if options.ids else data.text_ids
        shapes, num_examples = dict[str, str](), 0
        with (
            _open_output(output, write, is_leader=processes.is_leader) as add,
            Progress(enabled=processes.is_leader and output != _STDOUT) as progress,
            progress.work(f"predicting {name}") as advance,
        ):
            for batch in model.predict(
                given, batch_size=options.batch_size, stream=True, progress=advance
            ):
                if "text" in batch:
                    batch = {key: array for key, array in batch.items() if key not in hidden}
                shapes = _describe(batch, output)
                num_examples += len(next(iter(batch.values())))
                add(batch)
    if processes.is_leader and output != _STDOUT:
        print(f"{output or name}: {num_examples:,} examples at step {model.step}")
        has_arrays = output is not None and not _is_folder(options.output)
        for array, shape in shapes.items() if has_arrays else ():
            print(f"  {array}: {shape} for each")
    return 0


@contextlib.contextmanager
def _open_output(
    output: Path | None,
    write: Write,
    *,
    is_leader: bool,
) -> Iterator[Add]:
    """Yields a function that adds examples to the output; other processes have none.

    Without an output, their classes or texts are printed as a table at the end.
    """
    if output is None:
        rows: list[tuple[str, ...]] = []
        yield functools.partial(_add_rows, rows)
        if is_leader:
            _print_table(rows)
    elif not is_leader:
        yield lambda _: None
    elif output == _STDOUT:
        yield lambda batch: sys.stdout.writelines(map(bytes.decode, json_lines(batch)))
    else:
        with write(output) as add:
            yield add


def _check(options: Options) -> tuple[str, str, Path | None]:
    """Returns --run, --input and --output; raises UsageError for a mistake in the flags."""
    run = options.require_run()
    if options.input is None:
        raise UsageError(
            f"no input given: --input=NAME, an evaluation input, or {_ARRAYS}, or a path of files"
            " without labels"
        )
    if options.output is None:
        return run, options.input, None
    if options.output == str(_STDOUT):
        return run, options.input, _STDOUT
    if _is_folder(options.output):
        return run, options.input, new_output(options.output, "folder")
    if Path(options.output).suffix not in OUTPUT_SUFFIXES:
        raise UsageError(f"--output={options.output} is not the name of a {_OUTPUT}")
    return run, options.input, new_output(options.output, "file")


def _check_output(
    options: Options, experiment: Experiment, *, has_labels: bool, is_path: bool
) -> None:
    """Raises UsageError if --output does not fit --input.

    `has_labels` says that the input is an evaluation input, `is_path` that it is a path of files.
    """
    if options.output is None and not is_path:
        raise UsageError(f"no output given: --output={_OUTPUT}")
    if _is_folder(options.output) and not has_labels:
        names = ", ".join(experiment.eval_inputs) or "it has none"
        raise UsageError(
            f"--input={options.input} is not an evaluation input of the run ({names}): pictures in"
            " a folder show its images and labels"
        )


def _set_batch_size(input: Input, batch_size: int | None) -> Input:
    """Returns an input with another batch size; None: the input itself."""
    return input if batch_size is None else input.p.copy().set(batch_size=batch_size).build()


def _is_folder(output: str | None) -> bool:
    return output is not None and output.endswith("/")


def _read(name: str, experiment: Experiment) -> Mapping[str, np.ndarray] | str | None:
    """Returns the arrays in the file `name`, or the path of files without labels.

    The result is None if `name` is the name of an evaluation input.
    """
    names = experiment.eval_inputs
    if name in names:
        return None
    if Path(name).suffix in SUFFIXES:
        if not is_address(name):
            return read_examples(Path(name))
        with open_file(name) as file:
            return parse_examples(file, name)
    is_path = os.path.lexists(os.path.expanduser(name)) or glob.has_magic(name)
    if not (is_path or is_address(name)):
        raise UsageError(
            f"--input={name} is neither an evaluation input ({', '.join(names) or 'it has none'})"
            f" nor a {_ARRAYS}, nor a file or folder.{suggest(name, names)}"
        )
    return name


def _describe(batch: Mapping[str, np.ndarray], output: Path | None) -> dict[str, str]:
    """Returns the type and shape of each array that the output has, in words."""
    is_table = output is not None and output.suffix == ".csv"
    return {
        name: f"{'text' if array.dtype.kind == 'U' else array.dtype} {list(array.shape[1:])}"
        for name, array in batch.items()
        if array.ndim == 1 or not is_table
    }


def _add_rows(rows: list[tuple[str, ...]], batch: Mapping[str, np.ndarray]) -> None:
    """Adds the file of each example, [B], and its class or text, below the names of columns.

    Raises UsageError without them.
    """
    columns = next((names for names in _TABLES if {*names} <= {*batch}), None)
    if columns is None:
        raise UsageError(
            f"no output given, and the task predicts no classes, but {', '.join(batch)}:"
            f" --output={_OUTPUT}"
        )
    if not rows:
        rows.append(columns)
    rows += zip(*(_cells(batch[name]) for name in columns), strict=True)


def _cells(array: np.ndarray) -> list[str]:
    return [f"{x:.3f}" if array.dtype.kind == "f" else str(x) for x in array.tolist()]


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        print("  ".join(padded).rstrip())
