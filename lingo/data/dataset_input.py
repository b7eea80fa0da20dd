"""A `tf.data.Dataset` as an input: read in its own order, resumed by skipping.

    DatasetInput.params(function=load_dataset, batch_size=32)

A dataset has no random access: a resumed run reads the epoch again from its start, and skips the
examples that it has already seen. This needs a dataset that returns the same examples in the same
order each time it is made. So a dataset that keeps state, or draws without a seed, is refused.

Axes: N examples per epoch, B examples per batch.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.base.types import Function
from lingo.config.lazy import tf
from lingo.config.node.label import label
from lingo.config.params import ParamError
from lingo.data.example_input import ExampleInput, array_bytes, call_function, stack_examples
from lingo.data.files import DataError
from lingo.data.index import Progress
from lingo.data.sequence_input import name_parts
from lingo.data.tensor_input import stateful_operations
from lingo.ops.kind import describe_kind

_PROBED = 64  # the fingerprint covers this number of first examples
_PLUMBING = re.compile(r"^\{\{.*?\}\} |\s*\[(\[|Op:).*$", re.DOTALL)  # TensorFlow's internals
_TRANSPARENT = ("OptionsDataset", "PrefetchDataset")  # same elements as their input
_BATCHES = ("BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset")


class DatasetInput(ExampleInput):
    """The elements of a `tf.data.Dataset` that a function of the user's file returns.

    An element is one example, so the dataset must not be batched or repeated. It is a dict of
    tensors, or a tuple of tensors, which get their names from `names`. An epoch has the elements in
    the dataset's order. If the function takes an argument `epoch`, it is called for each epoch with
    the epoch's number (from 0), and may use it to shuffle: `dataset.shuffle(10_000, seed=epoch)`.
    """

    function: Function  # returns the dataset
    arguments: dict[str, Any] = {}  # the function's keyword arguments, without `epoch`
    names: list[str] = []  # names of an element's tensors, if elements are tuples
    num_elements: int | None = None  # per epoch; None: the dataset's own number

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_elements")
        if "epoch" in self.p.arguments:
            raise ParamError("arguments has 'epoch', which lingo passes itself: leave it out")

    def setup(self) -> None:
        super().setup()
        self._size = functools.cache(self._open)
        self._reader = _Reader(self._elements)
        self._seconds = 0.0  # seconds to read an element, measured by `prepare`

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Calls the function, checks its dataset, and counts elements if their number is unknown.

        Raises ParamError if the dataset keeps state, is batched or has no end, or if its elements
        are not examples; DataError if it is empty or cannot be read.
        """
        del progress
        self.num_examples()
        elements = itertools.islice(self._elements(0), _PROBED)
        next(elements, None)  # waits until the dataset is made
        start = time.perf_counter()
        num_read = sum(1 for _ in elements)
        self._seconds = (time.perf_counter() - start) / max(num_read, 1)

    def remarks(self) -> list[str]:
        """Returns how long a resume may take, if that is a second or more."""
        size = self.num_examples()
        if (seconds := self._seconds * size) < 1:
            return []
        return [
            "a run on a tf.data.Dataset resumes by reading the epoch again from its start: up to"
            f" {size:,} examples, about {seconds:.0f} s here"
        ]

    def num_examples(self) -> int:
        return self._size()

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        size, rows = self.num_examples(), []
        for number in numbers.tolist():
            epoch, index = divmod(number, size)
            element = self._reader.read(epoch, index)
            if element is None:
                raise DataError(
                    f"{label(self.p.function)}: epoch {epoch} has no element {index}, but"
                    f" every epoch needs {size} elements"
                )
            rows.append(element)
        return stack_examples(rows, label(self.p.function))

    def fingerprint(self) -> dict[str, Any]:
        """Returns the function, the number of examples and a digest of the first examples."""
        digest, size = hashlib.sha256(), self.num_examples()
        for element in itertools.islice(self._elements(0), _PROBED):
            for name, array in sorted(element.items()):
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(array_bytes(array))
        return {"source": label(self.p.function), "examples": size, "digest": digest.hexdigest()}

    def _dataset(self, epoch: int) -> tf.data.Dataset:
        """Returns a new dataset, so that its shuffles start anew."""
        arguments = dict(self.p.arguments)
        if "epoch" in inspect.signature(self.p.function).parameters:
            arguments["epoch"] = epoch
        with tf.device("CPU:0"):
            dataset = call_function(self.p.function, arguments)
        if not isinstance(dataset, tf.data.Dataset):
            raise ParamError(
                f"{label(self.p.function)} returned {describe_kind(dataset)}, not a tf.data.Dataset"
            )
        options = tf.data.Options()
        options.deterministic = True
        return dataset.with_options(options)

    def _elements(self, epoch: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields the elements of an epoch as {name: array}."""
        where = f"{label(self.p.function)}: an element"
        for element in self._read_dataset(self._dataset(epoch)):
            yield name_parts(element, self.p.names, where)

    def _read_dataset(self, dataset: tf.data.Dataset) -> Iterator[Any]:
        """Yields the elements of a dataset in NumPy; raises DataError if one cannot be read."""
        try:
            yield from dataset.as_numpy_iterator()
        except tf.errors.OpError as error:
            reason = _PLUMBING.sub("", error.message).rpartition("\n\n")[-1]
            raise DataError(f"{label(self.p.function)}: {reason}") from error

    def _open(self) -> int:
        """Checks the dataset; returns the number of elements of an epoch."""
        where, dataset = label(self.p.function), self._dataset(0)
        check_dataset(dataset, where)
        if self.p.num_elements is not None:
            return self.p.num_elements
        known = int(dataset.cardinality())
        if known == tf.data.INFINITE_CARDINALITY:
            raise ParamError(
                f"{where}: the dataset has no end: leave out .repeat(), as the input repeats it"
            )
        if known == tf.data.UNKNOWN_CARDINALITY:
            known = sum(1 for _ in self._read_dataset(dataset))
        if not known:
            raise DataError(f"{where} returned a dataset without elements.")
        return known


class _Reader:
    """Reads elements by epoch and index; for an earlier index it reads the epoch again.

    Several threads may call `read`.
    """

    def __init__(self, elements: Any) -> None:
        self._elements = elements
        self._lock = threading.Lock()
        self._epoch, self._next = -1, 0
        self._iterator: Iterator[dict[str, np.ndarray]] = iter(())
        self._last: dict[str, np.ndarray] | None = None

    def read(self, epoch: int, index: int) -> dict[str, np.ndarray] | None:
        """Returns an element, or None if the epoch ends before it."""
        with self._lock:
            if epoch != self._epoch or index < self._next - 1:
                self._iterator, self._epoch, self._next = self._elements(epoch), epoch, 0
            while self._next <= index:
                self._last = next(self._iterator, None)
                self._next += 1
                if self._last is None:
                    return None
            return self._last


def check_dataset(dataset: tf.data.Dataset, where: str) -> None:
    """Raises ParamError if a dataset is batched, or may have other elements when it is made again.

    Elements may differ if the dataset, or a dataset inside it, keeps state or lacks a seed. Errors
    begin with `where`, the dataset's origin.
    """
    last = dataset
    while (kind := _kind(last)) in _TRANSPARENT:
        (last,) = last._inputs()
    if kind in _BATCHES:
        raise ParamError(
            f"{where}: the dataset is batched, but an element must be one example: leave out"
            " .batch(), as the input makes batches. If a batch is meant as one example, such as a"
            " window, add .map(lambda element: element)"
        )
    waiting = [dataset]
    while waiting:
        part = waiting.pop()
        waiting += part._inputs()  # inputs and functions have no public names in TensorFlow
        kind = _kind(part)
        if _lacks_seed(part):
            raise ParamError(
                f"{where}: {kind} has no seed, so no run could be resumed: set one, such as"
                " shuffle(10_000, seed=epoch) in a function that takes `epoch`"
            )
        for function in part._functions():
            for operation in stateful_operations(function.function.graph):
                raise ParamError(
                    f"{where}: {kind} uses {operation}. A dataset must have the same elements each"
                    " time it is made: draw by tf.random.stateless_*, or in `augment`; for Python"
                    " code there is SequenceInput"
                )


def _kind(dataset: tf.data.Dataset) -> str:
    return type(dataset).__name__.strip("_")


def _lacks_seed(dataset: tf.data.Dataset) -> bool:
    """Returns whether a dataset draws random numbers without a seed that the user has set."""
    seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
    return all(seed is not None and int(seed) == 0 for seed in seeds)
