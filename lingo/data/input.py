"""The contract of an input: a batch is a function of (seed, step), so an input has no state.

Axes: B examples.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from lingo.config import ranges
from lingo.config.params import Configurable, ParamError, Params
from lingo.config.roots.user_line import definition_line, is_lingos
from lingo.data.array_spec import ArraySpec
from lingo.data.index import Progress
from lingo.data.prompt import Answer, Prompt, TextPair
from lingo.data.request import RequestReader
from lingo.data.task_schedule import Evaluated
from lingo.metrics.media import Media
from lingo.ops.kind import describe_kind

MAX_STEPS = 2**31 - 1
"""The most steps of a run: the compiled program counts steps in int32."""


class Input(Configurable, interface=True):
    """Makes the batches on which a task is trained or evaluated.

    `setup` does not touch the disk, so that a configuration also builds on a machine without the
    data; the first use, or `prepare`, opens the data.
    """

    batch_size: int  # examples per step, over all devices
    seed: int = 0  # decides the order of examples
    repeat: bool = True  # epoch after epoch; False: one pass, for evaluation
    max_batches: int | None = None  # most batches of a pass; None: all of the data

    repeat_advice: ClassVar[str] = (
        "draw from a key of the seed and the example's number (lingo.ops.random)"
    )
    """Advice for errors: what to do if examples differ when they are made again."""
    has_text_pairs: ClassVar[bool] = False  # whether the input has `text_pairs`
    measures: ClassVar[tuple[str, ...]] = ()  # names of the metrics that `score` returns
    text_ids: ClassVar[tuple[str, ...]] = ()
    """Predicted arrays of token ids, which `describe_predictions` turns into texts."""
    thread_safe: ClassVar[bool] = False
    """Whether several threads may call `batch` at once. Subclasses do not inherit it, because they
    may keep something between calls.
    """

    def check(self) -> None:
        ranges.check_positive(self.p, "batch_size")
        if self.p.max_batches is not None and (self.p.repeat or self.p.max_batches < 1):
            raise ParamError(
                f"max_batches={self.p.max_batches} must be positive and needs repeat=False"
            )

    @property
    def declares_late(self) -> bool:
        """Whether `specs` needs the data, so that building an experiment must open it first."""
        return False

    def offers(self) -> dict[str, Any]:
        """Returns values for the task's fields, such as `vocab_size`, without reading the data."""
        return {}

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes by label, [K]; () if classes have no names.

        Raises DataError if the names are in the data, and cannot be read.
        """
        return ()

    def unlabeled_params(self, path: str) -> Params:
        """Returns the params of a single pass over other files, for predictions.

        Its examples are made as this input makes them, and in the order of the files. Batches have
        no labels, so the files need none.

        Args:
            path: the path of a file or folder, or a glob.

        Raises:
            ParamError: if this input reads no such files, or changes examples at random.
        """
        raise ParamError(
            f"{type(self).__name__} cannot read {path}: it defines no `unlabeled_params`, which"
            " returns the params of an input for files without labels. Give arrays in a .npz or"
            " .jsonl file"
        )

    def allows_threads(self) -> bool:
        """Returns whether threads may call `batch` at once: `thread_safe` of the class itself."""
        return vars(type(self)).get("thread_safe", False)

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Opens the data now; raises DataError if it is missing or cannot be read."""
        raise self._missing_method(
            "prepare", "it opens the data; `pass` if there is nothing to open"
        )

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        """Returns the examples of a step; raises DataError if data cannot be read.

        Args:
            step: 0, 1, ...; less than `num_batches()` for a single pass.
            rows: selects B of the step's `batch_size` examples.

        Returns:
            `example_id`: int64 [B], each example's index in the run;
            `rows`: int32 [B], each example's index in the step's batch;
            `weights`: float32 [B], 0 for padding of the last batch, else 1;
            and the arrays of `examples`.
        """
        self.check_step(step)
        indices = np.arange(self.p.batch_size, dtype=np.int32)[rows]
        numbers = step * self.p.batch_size + indices.astype(np.int64)
        weights = np.ones(len(numbers), np.float32)
        if not self.p.repeat:
            weights[numbers >= self.num_examples()] = 0
        counts = {"example_id": numbers, "rows": indices, "weights": weights}
        examples = self.examples(numbers)
        if not isinstance(examples, dict):
            raise ParamError(
                f"{definition_line(type(self).examples)}: {type(self).__name__}.examples returned"
                f" {describe_kind(examples)}, not a dict of arrays: {{name: [B, ...]}}"
            )
        return examples | counts

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the task's arrays for some examples: {name: [B, ...]}, dtypes as in `specs`.

        `numbers`, int64 [B], are the examples' `example_id`, which continue from epoch to epoch.
        After the end of a single pass (`repeat=False`), examples have no content.
        """
        raise self._missing_method(
            "examples", "it returns {name: [B, ...]} for example numbers, int64 [B]"
        )

    def shape_id(self, step: int) -> int:
        """Returns an id of the shapes in a step's batch; only batches of equal ids are stacked."""
        del step
        return 0

    def check_step(self, step: int) -> None:
        """Raises IndexError if the input has no batch for a step."""
        if step < 0 or (not self.p.repeat and step >= self.num_batches()):
            raise IndexError(f"the input has no batch {step}")

    def specs(self) -> dict[str, ArraySpec]:
        """Returns name -> (shape, dtype) of the arrays of a whole batch.

        It reads no data, unless the input `declares_late`. Where batches have several shapes
        (`shape_id`), these are the shapes for the longest rows.
        """
        size = self.p.batch_size
        return {
            "example_id": ((size,), "int64"),
            "rows": ((size,), "int32"),
            "weights": ((size,), "float32"),
        }

    def num_batches(self) -> int:
        """Returns how many batches one pass has; the last batch is padded (weight 0)."""
        if self.p.repeat:
            raise ParamError(f"{type(self).__name__} repeats without end: set repeat=False")
        batches = self.pass_batches()
        return min(batches, self.p.max_batches or batches)

    def pass_batches(self) -> int:
        """Returns how many batches hold all examples of an epoch."""
        return -(-self.num_examples() // self.p.batch_size)

    def num_examples(self) -> int:
        """Returns how many examples an epoch has."""
        raise self._missing_method("num_examples", "it returns how many examples an epoch has")

    def num_items(self) -> int:
        """Returns how many examples, or pairs in them, an epoch has, for `Mixture`'s shares."""
        return self.num_examples()

    def examples_before(self, step: int) -> int:
        """Returns how many examples earlier steps read, which is the step's first `example_id`."""
        return step * self.p.batch_size

    def num_rows(self, step: int) -> int:
        """Returns how many examples the batch of a step has, over all devices."""
        return self.examples_before(step + 1) - self.examples_before(step)

    def example_ids(self, step: int) -> np.ndarray:
        """Returns the `example_id` of a step's whole batch, int64 [B], without reading data."""
        first = self.examples_before(step)
        return np.arange(first, first + self.num_rows(step), dtype=np.int64)

    def epochs(self, step: int) -> float:
        """Returns how many passes over the data the steps before `step` made."""
        return step * self.p.batch_size / self.num_examples()

    def steps_of(self, epochs: float) -> int:
        """Returns the steps that complete a number of passes over the data; the last may go beyond.

        The result is above `MAX_STEPS` if no run can complete them.
        """
        last = 1
        while self.epochs(last) < epochs and last < MAX_STEPS:
            last *= 2
        return bisect.bisect_left(range(last + 1), epochs, key=self.epochs)

    def origins(self, numbers: np.ndarray) -> list[str]:
        """Returns the origin of each example, by `example_id`, int64 [B].

        "2:17" is example 17 of pass 2, both from 0. Each pass has each example once.
        """
        size = self.num_examples()
        return [f"{number // size}:{number % size}" for number in numbers.tolist()]

    def example_names(self, numbers: np.ndarray) -> list[str]:
        """Returns the name of each example for readers, such as its file, by `example_id`, [B].

        []: examples have no names. `numbers` are int64 [B], of a single pass without padding.
        """
        del numbers
        return []

    def describe_predictions(self, predictions: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns predictions, with more for readers at the front, such as the `text` of token ids.

        `predictions` are from `Task.predict`, {name: [B, ...]} without padding. They also have
        `file`, str [B], if the examples have names (`example_names`). The result is for
        `lingo predict` and `model.predict`; by default nothing is added.
        """
        return dict(predictions)

    def request_reader(self) -> RequestReader | None:
        """Returns the reader of a server's requests, such as recordings; None: they are arrays.

        Raises MissingPackage if reading needs a package that is not installed.
        """
        return None

    def summaries(
        self, numbers: np.ndarray, predictions: Mapping[str, np.ndarray]
    ) -> dict[str, Media]:
        """Returns media for TensorBoard, by name, of data that batches lack, such as sound.

        `numbers`, int64 [B], are the `example_id` of the
        first examples of a pass, without padding; `predictions`, {name: [B, ...]}, are the task's.
        A summary of the task under the same name is shown instead.
        """
        del numbers, predictions
        return {}

    def prompt(self, text: str) -> Prompt:
        """Returns a text as a model's prompt; only inputs with a `tokenizer` have prompts."""
        tokenizer = vars(self)["tokenizer"]
        return Prompt(np.append(tokenizer.start_id, tokenizer.encode(text)).astype(np.int32))

    def text_pairs(self, limit: int | None) -> list[TextPair]:
        """Returns at most `limit` pairs of texts; only inputs with `has_text_pairs` have any.

        The choice of pairs depends on the source alone, not on the seed, the order or the batches
        of the examples, so that scores of their answers can be compared.
        """
        raise self._missing_method("text_pairs", "it returns a list of TextPair")

    def score(self, predictions: Mapping[str, np.ndarray]) -> tuple[dict[str, float], list[Answer]]:
        """Returns metrics of what a task predicts for a pass, and answers to show.

        Inputs with `measures` define this method, for metrics that need texts or whole documents,
        which batches do not have. `predictions` are from `Task.predict`: {name: [N, ...]} for the
        first N examples, without padding.
        """
        raise self._missing_method("score", f"it returns {', '.join(self.measures)}, and answers")

    def fingerprint(self) -> dict[str, Any]:
        """Returns what identifies the data: source, number of documents, bytes, digest."""
        raise self._missing_method(
            "fingerprint",
            "it returns what identifies the data, such as {'file': 'a.npy', 'bytes': 1024}, so that"
            " a run is not resumed with other data",
        )

    def remarks(self) -> list[str]:
        """Returns sentences about the data to show the user, such as which records are left out."""
        return []

    def inputs_by_task(self) -> dict[str, Input]:
        """Returns task name -> its input; an input without tasks has the one name "".

        The batches of these inputs have no mark of their task.
        """
        return {"": self}

    def followed_metrics(self) -> list[str]:
        """Returns the metrics, "input/metric", of evaluations that decide over later batches."""
        return []

    def follow(self, evaluations: Sequence[Evaluated]) -> None:
        """Makes later batches depend on all `evaluations` so far, by rising step.

        It is called before the first step, after each evaluation and after a rewind, if there are
        `followed_metrics`. The step of an evaluation is the number of batches before it.
        """

    def check_batch(self, batch: Mapping[str, np.ndarray]) -> None:
        """Raises ParamError if a batch, {name: [B, ...]}, differs from `specs`.

        B is the length of `rows`. Where batches have several shapes, `specs` has the largest.
        """
        specs, name = self.specs(), type(self).__name__
        if differ := sorted(specs.keys() ^ batch.keys()):
            has, lacks = ("batch", "specs") if differ[0] in batch else ("specs", "batch")
            raise ParamError(
                f"{self.code_line()}: {name}.{has} has the array {differ[0]!r}, which {lacks} lacks"
            )
        varies, num_rows = type(self).shape_id is not Input.shape_id, len(batch["rows"])
        for array, (shape, dtype) in specs.items():
            given, wanted = np.asarray(batch[array]), (num_rows, *shape[1:])
            fits = given.shape == wanted or (varies and _fits_in(given.shape, wanted))
            is_text = given.dtype == object and dtype == "string"
            if not fits or not (is_text or given.dtype.name == dtype):
                raise ParamError(
                    f"{self.code_line()}: {name}: the array {array!r} of a batch is {given.dtype}"
                    f" {list(given.shape)}, but specs has {dtype} {list(wanted)}.\nThe program is"
                    " compiled for specs: convert the array, `x.astype(np.float32)`, or correct"
                    " specs."
                )

    def check_specs(self) -> None:
        """Raises ParamError unless `specs` has the arrays of every batch, all as (shape, dtype)."""
        specs, own = self.specs(), Input.specs(self)
        if not isinstance(specs, dict):
            mistake = f" returned {describe_kind(specs)}, not a dict: name -> (shape, dtype)"
        elif lacking := own.keys() - specs.keys():
            mistake = f" lacks {', '.join(sorted(lacking))}: return super().specs() | {{...}}"
        elif wrong := [f"{name!r} is {s!r:.80}" for name, s in specs.items() if not _is_spec(s)]:
            mistake = f": {wrong[0]}, not (shape, dtype), such as ((batch_size, 3), 'float32')"
        else:
            return
        name = type(self).__name__
        path = vars(self.p)["_path"]  # the message already names a place
        raise ParamError(f"{definition_line(type(self).specs)}: {name}.specs{mistake}", path)

    def check_size(self) -> None:
        """Raises ParamError if the data has no examples; it must be open (`prepare`)."""
        size = self.num_examples()
        if not isinstance(size, (int, np.integer)) or size < 1:
            raise ParamError(
                f"{definition_line(type(self).num_examples)}: {type(self).__name__}.num_examples"
                f" returned {size!r:.80}: the examples of an epoch are a whole number, at least 1"
            )

    def check_repeatable(self) -> None:
        """Raises ParamError if the first batch differs from `specs`, or differs when made again."""
        self.check_batch(self.repeated_batch(0, self))

    def repeated_batch(self, step: int, again: Input) -> dict[str, np.ndarray]:
        """Returns the `batch` of a step, {name: [B, ...]}.

        Raises ParamError if the input `again` makes a different batch.
        """
        batch = self.batch(step)
        # Copied before the next call, which might return the same arrays with other values.
        first = {name: array_content(value) for name, value in batch.items()}
        second = {name: array_content(value) for name, value in again.batch(step).items()}
        differ = [name for name in {**first, **second} if first.get(name) != second.get(name)]
        if differ:
            which = f"the batch of step {step}" if step else "the first batch"
            how = "made twice" if again is self else "made first by an input that is built again"
            raise ParamError(
                f"{self.code_line()}: {type(self).__name__}: {which}, {how}, differs"
                f" in {', '.join(differ)}. A batch must be a function of (seed, step), or no run"
                f" could be resumed: {self.repeat_advice}."
            )
        return batch

    def check_fingerprint(self) -> dict[str, Any]:
        """Returns `fingerprint`; raises ParamError unless it is a dict of JSON.

        A user's class is asked twice; ParamError is also raised if its two fingerprints differ.
        """
        fingerprint, name = self.fingerprint(), type(self).__name__
        where = f"{definition_line(type(self).fingerprint)}: {name}.fingerprint"
        try:
            text = json.dumps(fingerprint, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ParamError(f"{where} returned a value that JSON cannot hold: {error}") from None
        if not isinstance(fingerprint, dict):
            raise ParamError(
                f"{where} returned {describe_kind(fingerprint)}, not a dict that identifies the"
                " data, such as {'file': 'a.npy', 'bytes': 1024}"
            )
        if not is_lingos(type(self)) and (again := json.dumps(self.fingerprint())) != text:
            raise ParamError(
                f"{where} returned {text:.60} and then {again:.60}: it must identify the data, or"
                " no run could be resumed"
            )
        return fingerprint

    def code_line(self) -> str:
        """Returns `file:line` of the code that makes the examples, for errors."""
        return definition_line(type(self).examples)


def check_inner(inner: Input, outer: Input, *, field: str) -> None:
    """Raises ParamError if `outer` cannot take the examples of `inner`, the input in `field`."""
    if type(inner).examples is Input.examples:
        raise ParamError(f"{field}: {type(inner).__name__} makes whole batches, without `examples`")
    sizes = (inner.p.batch_size, inner.p.repeat, inner.p.max_batches)
    if sizes != (outer.p.batch_size, outer.p.repeat, None):
        raise ParamError(
            f"{field}: leave out batch_size, repeat and max_batches, and set them in the"
            f" {type(outer).__name__} around it"
        )


def _fits_in(shape: tuple[int, ...], largest: tuple[int, ...]) -> bool:
    if len(shape) != len(largest):
        return False
    return all(size <= most for size, most in zip(shape, largest, strict=True))


def _is_spec(spec: Any) -> bool:
    try:
        shape, dtype = spec
        _ = dtype == "bfloat16" or np.dtype(dtype)
        return all(isinstance(size, (int, np.integer)) for size in shape)
    except (TypeError, ValueError):
        return False


def array_content(array: Any) -> tuple[Any, ...]:
    """Returns a value that is equal for two arrays only if they agree in dtype, shape and bits.

    So NaN equals NaN, and 0 differs from -0.
    """
    array = np.asarray(array)
    values = array.tolist() if array.dtype == object else array.tobytes()
    return array.dtype, array.shape, values
