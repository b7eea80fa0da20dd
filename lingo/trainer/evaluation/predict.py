"""Predictions for the examples of an input, or of arrays, one batch at a time.

All batches have one size, so that the program is compiled once: the last batch is padded with
examples of weight 0, whose predictions are left out.

Axes: N examples, B examples in a batch.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.options import option, option_class
from lingo.config.params import ParamError, suggest
from lingo.contract import Experiment
from lingo.data.array_spec import ArraySpec, task_mark
from lingo.data.input import Input
from lingo.data.prefetch import Prefetch
from lingo.data.prompt import Prompt
from lingo.data.tables.table_input import TableInput
from lingo.decode.decoding import Decoding
from lingo.decode.text import Continuation
from lingo.export.exported_model import Arrays
from lingo.learner.task import BATCH_EXAMPLE
from lingo.ops.kind import describe_kind
from lingo.runtimes.program import Program, explain_program_errors
from lingo.trainer.evaluation.generate import continue_prompts

Predictions = dict[str, np.ndarray]
"""{name: [B, ...]}, without padding."""

Progress = Callable[[int, int], None]
"""Called with the number of batches done and the total."""


@option_class
class PredictOptions:
    """Settings for computing predictions."""

    batch_size: int | None = option(
        "Examples per batch; by default the input's batch size, or for arrays and files at most"
        " the training batch size.",
        default=None,
        minimum=1,
    )


_COUNTS = ("example_id", "rows", "weights")  # arrays of every batch that a user need not give


def predict_batches(
    experiment: Experiment,
    program: Program,
    inputs: Input | Mapping[str, Any] | str | Path,
    *,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Predictions]:
    """Yields the predictions for an input, for arrays, or for files, as `Trained.predict` does."""
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise ParamError(f"batch_size={batch_size!r} is not a positive int")
    if isinstance(inputs, (str, Path)):
        sized = {"batch_size": batch_size, "progress": progress}
        return predict_files(experiment, program, str(inputs), **sized)
    if isinstance(inputs, Input):
        sized = inputs.p.copy().set(batch_size=batch_size).build() if batch_size else inputs
        sized.num_batches()  # raises if the input has no end
        return predict_input(experiment, program, sized, progress=progress)
    if (rows := _table_rows(experiment, inputs)) is not None:
        data, columns = rows
        given = data.given_rows(columns, batch_size=batch_size or data.p.batch_size)
        batches = predict_input(experiment, program, given, progress=progress)
        return ({k: v for k, v in batch.items() if k != "example_id"} for batch in batches)
    if not isinstance(inputs, Mapping):
        raise ParamError(
            f"predict takes an Input, a dict of arrays, or the path of files, got"
            f" {describe_kind(inputs)}: {BATCH_EXAMPLE}"
        )
    arrays = convert_arrays(experiment, inputs)
    most = experiment.train_input.specs()["rows"][0][0]
    size = batch_size or min(most, len(next(iter(arrays.values()))))
    return predict_arrays(experiment, program, arrays, batch_size=size, progress=progress)


def _table_rows(experiment: Experiment, inputs: Any) -> tuple[TableInput, Mapping[str, Any]] | None:
    """Returns the input of a table, and the columns of rows, if `inputs` are rows of this table."""
    data = experiment.prediction_input
    if not isinstance(data, TableInput) or data.declares_late:
        return None
    if hasattr(inputs, "to_dict") and hasattr(inputs, "columns"):  # a data frame
        names = [name for name in inputs.columns if str(name) in data.p.columns]
        return data, {str(name): list(inputs[name]) for name in names}
    is_encoded = isinstance(inputs, Mapping) and {*inputs} <= {*data.specs()}
    if not isinstance(inputs, Mapping) or (is_encoded and not {*data.p.columns} <= {*inputs}):
        return None
    return data, inputs


def predict_input(
    experiment: Experiment, program: Program, input: Input, *, progress: Progress | None = None
) -> Iterator[Predictions]:
    """Yields, for each batch of an input in order, the predictions and `example_id`.

    `example_id`, int64 [B], is the index of each example in the input. If examples have names, they
    are the array `file`, str [B]. Batches are made ahead, in
    threads. All processes call this together, and get all predictions.

    Raises ParamError if the input repeats without end, DataError if the input fails, and
    ProgramError if the program fails.
    """
    number, weights = input.num_batches(), experiment.p.evaluate.weights
    spans = (range(step, step + 1) for step in range(number))
    with Prefetch(input, spans=spans, rows=program.example_slice) as items:
        for steps, batches in items:
            batch = {name: values[0] for name, values in batches.items()}
            with explain_program_errors(f"prediction, batch {steps.start}"):
                results = program.predict(batch, weights=weights)
            is_example = results.pop("weights") > 0
            results = {"example_id": input.example_ids(steps.start), **results}
            examples = {name: array[is_example] for name, array in results.items()}
            names = input.example_names(examples["example_id"])
            yield {"file": np.array(names, str), **examples} if names else examples
            if progress is not None:
                progress(steps.stop, number)


def predict_files(
    experiment: Experiment,
    program: Program,
    path: str,
    *,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Predictions]:
    """Returns an iterator over the batches' predictions for examples in files without labels.

    The first evaluation input, or the training input, decides how files are read
    (`Input.unlabeled_params`). The array `file`, str [B], says where each example is.

    Raises ParamError if that input reads no such files, DataError if one of them cannot be read,
    and ProgramError if the program fails.
    """
    data = experiment.prediction_input
    params = data.unlabeled_params(path)
    input: Input = (params.set(batch_size=batch_size) if batch_size else params).build()
    input.prepare()

    def name_file(batch: Predictions) -> Predictions:
        return {"file": batch.pop("example_id").astype(str), **batch}

    return map(name_file, predict_input(experiment, program, input, progress=progress))


def predict_arrays(
    experiment: Experiment,
    program: Program,
    arrays: Mapping[str, np.ndarray],
    *,
    batch_size: int,
    progress: Progress | None = None,
) -> Iterator[Predictions]:
    """Yields the predictions for `arrays`, {name: [N, ...]}, in batches of `batch_size` examples.

    The arrays come from `convert_arrays`. All processes call this together with the same arrays,
    and get all predictions.

    Raises ParamError if the task reads an array that is not given, or cannot compute its shape, and
    ProgramError if the program fails.
    """
    num_examples = len(next(iter(arrays.values())))
    own = program.example_slice(batch_size)
    number, weights = -(-num_examples // batch_size), experiment.p.evaluate.weights
    for i in range(number):
        start = i * batch_size
        size = min(batch_size, num_examples - start)
        given = {name: array[start : start + size] for name, array in arrays.items()}
        given = _counts(start, size) | given | {"rows": np.arange(size, dtype=np.int32)}
        batch = {name: _pad(array, batch_size)[own] for name, array in given.items()}
        with explain_program_errors(f"prediction, batch {i}"), _explain_shapes(experiment, given):
            results = program.predict(batch, weights=weights)
        del results["weights"]
        yield {name: array[:size] for name, array in results.items()}
        if progress is not None:
            progress(i + 1, number)


def convert_arrays(experiment: Experiment, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns a user's arrays, {name: [N, ...]}, in the dtypes of the experiment's inputs.

    Raises ParamError if there is no example, if no input has an array of a given name, if arrays
    differ in the number of examples, or if an array has another number of axes than in the inputs
    or a dtype that cannot be converted.
    """
    specs = _specs(experiment)
    if unknown := [name for name in arrays if name not in specs]:
        given = unknown[0]
        raise ParamError(
            f"no input of the experiment has an array {given!r:.80}.{suggest(str(given), specs)}"
            f" There are {', '.join(sorted(specs))}."
        )
    converted = {name: _convert(name, value, specs[name]) for name, value in arrays.items()}
    if not converted or not any(map(len, converted.values())):
        raise ParamError(f"there is no example to predict: {BATCH_EXAMPLE}")
    (first, array), *others = converted.items()
    for name, other in others:
        if len(other) != len(array):
            raise ParamError(
                f"{name!r} has {len(other)} examples, but {first!r} has {len(array)}: the first"
                " axis of all arrays counts the examples"
            )
    return converted


def concatenate(batches: Iterable[Predictions]) -> Predictions:
    """Returns the predictions for several batches as one, {name: [N, ...]}.

    Raises ParamError if the arrays of two batches differ in more than the number of examples.
    """
    parts: dict[str, list[np.ndarray]] = {}
    for batch in batches:
        for name, array in batch.items():
            own = parts.setdefault(name, [])
            if own and own[0].shape[1:] != array.shape[1:]:
                raise ParamError(
                    f"the prediction {name!r} has shape {_shape(own[0])} in one batch and"
                    f" {_shape(array)} in another: take them batch by batch, with stream=True"
                )
            own.append(array)
    whole: Predictions = {}
    for name in list(parts):
        own = parts.pop(name)
        whole[name] = own[0] if len(own) == 1 else np.concatenate(own)
    return whole


def as_array(name: str, value: Any) -> np.ndarray:
    """Returns a user's value as an array; raises ParamError if it is not rectangular."""
    try:
        return np.asarray(value)
    except ValueError:
        raise ParamError(
            f"{name!r} has rows that differ in length: cut or pad them to one shape"
        ) from None


class Reference:
    """A run's program as a `lingo.export.signature.Run`, with which exports are compared."""

    def __init__(self, experiment: Experiment, program: Program) -> None:
        self._experiment, self._program = experiment, program

    def predict(self, arrays: Arrays) -> Arrays:
        size, log = len(next(iter(arrays.values()))), logging.getLogger("tensorflow")
        log.addFilter(_is_no_retracing_warning)
        try:
            batches = predict_arrays(self._experiment, self._program, arrays, batch_size=size)
            return concatenate(batches)
        finally:
            log.removeFilter(_is_no_retracing_warning)

    def decode(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Continuation]]:
        return continue_prompts(self._experiment, self._program, prompts, decoding, seed=0)


def _specs(experiment: Experiment) -> dict[str, ArraySpec]:
    """Returns name -> (shape, dtype) of all inputs' arrays; the training input takes precedence."""
    specs: dict[str, ArraySpec] = {}
    data = experiment.train_input
    for input in (*experiment.eval_inputs.values(), *data.inputs_by_task().values(), data):
        specs.update(input.specs())
    marks = [task_mark(name) for name in data.inputs_by_task() if name]
    return specs | dict.fromkeys(marks, specs["rows"])


def _convert(name: str, value: Any, spec: ArraySpec) -> np.ndarray:
    """Returns a user's array in a spec's dtype; floats are rounded, other values stay equal."""
    shape, dtype = spec
    array, wanted = as_array(name, value), np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    if array.ndim != len(shape):
        raise ParamError(
            f"{name!r} has shape {_shape(array)}, but needs {len(shape)} axes: {BATCH_EXAMPLE}"
        )
    if array.dtype == wanted:
        return array
    if (kind := array.dtype.kind) in "biuf":
        with np.errstate(invalid="ignore"):  # NaN becomes an integer, which differs from NaN
            converted = array.astype(wanted)
        is_rounded = kind == "f" and np.can_cast(array.dtype, wanted, "same_kind")
        if is_rounded or (converted == array).all():
            return converted
    raise ParamError(
        f"{name!r} is {array.dtype}, but needs {dtype}, and not all of its values can be converted:"
        f" {BATCH_EXAMPLE}"
    )


def _counts(start: int, size: int) -> dict[str, np.ndarray]:
    """Returns `example_id`, `rows` and `weights`, [B], of `size` examples from `start`."""
    ids, rows = np.arange(start, start + size, dtype=np.int64), np.arange(size, dtype=np.int32)
    return dict(zip(_COUNTS, (ids, rows, np.ones(size, np.float32)), strict=True))


def _pad(array: np.ndarray, size: int) -> np.ndarray:
    """Returns an array [B, ...] with zeros appended, so that its first axis has `size` entries."""
    missing = size - len(array)
    return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1)) if missing else array


@contextlib.contextmanager
def _explain_shapes(experiment: Experiment, arrays: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Turns a shape error in the body into a ParamError if an array's shape is not training's."""
    try:
        yield
    except (ValueError, TypeError) as error:
        specs = experiment.train_input.specs()
        for name, array in arrays.items():
            shape, _ = specs.get(name, (array.shape, ""))
            if isinstance(error, ParamError) or tuple(shape[1:]) == array.shape[1:]:
                continue
            raise ParamError(
                f"{name!r} has shape {_shape(array)}, in training {list(shape)}, and the model"
                f" cannot compute it: {str(error).strip().splitlines()[0]:.200}"
            ) from error
        raise


def _shape(array: np.ndarray) -> str:
    return str(list(array.shape))


def _is_no_retracing_warning(record: logging.LogRecord) -> bool:
    """Hides TensorFlow's warning about retracing: examples of many shapes are intended here."""
    return "triggered tf.function retracing" not in record.getMessage()
