"""Another input's examples, changed by a TensorFlow program: parsed, decoded, augmented.

With `tf.random.uniform` or a variable in such a program, a resumed run would see other examples
than an uninterrupted one. So the program is traced when data is opened, and refused if any
operation in it, at any depth, keeps state.

Axes: B examples.
"""

from __future__ import annotations

import functools
import linecache
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import ArraySpec
from lingo.data.derived_input import DerivedInput
from lingo.data.files import DataError
from lingo.data.index import Progress
from lingo.data.input import Input
from lingo.ops import random

_CALLS = ("If", "While", "Case", "StatefulPartitionedCall")  # as stateful as functions they call
_HARMLESS = ("Assert", "Print", "PrintV2", "CheckNumericsV2")  # stateful, but change no value
_SOURCES = (  # `tf.data` marks them stateful only so that they do not become constants
    "FixedLengthRecordDataset",
    "FixedLengthRecordDatasetV2",
    "RangeDataset",
    "SparseTensorSliceDataset",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "TensorDataset",
    "TensorSliceDataset",
    "TextLineDataset",
)
_ALLOWED = frozenset((*_CALLS, *_HARMLESS, *_SOURCES))


class TensorInput(DerivedInput):
    """Another input's examples, changed in TensorFlow.

    A subclass defines the change (`map`) and its results' shapes and dtypes (`arrays`). The other
    input is built with the TensorInput's `batch_size`, `seed` and `repeat`.
    """

    def setup(self) -> None:
        super().setup()
        self._program = functools.cache(self._trace_map)

    def map(self, arrays: dict[str, tf.Tensor], key: random.Key) -> dict[str, tf.Tensor]:
        """Returns the task's arrays for some examples; it is traced, and runs on the CPU.

        Args:
            arrays: {name: [B, ...]}, the arrays of the input; dtypes as in its `specs`.
            key: two uint32 [B], a random key of (seed, `example_id`) per example, for
                `lingo.ops.random`; `tf.bitcast(tf.stack(key, -1), tf.int32)`, int32 [B, 2], has a
                seed per example for `tf.random.stateless_*`.

        Returns:
            {name: [B, ...]}, with the shapes and dtypes of `arrays`.
        """
        raise self._missing_method("map", "it returns the task's arrays, {name: [B, ...]}")

    def arrays(self) -> dict[str, ArraySpec]:
        """Returns name -> (shape of one example, dtype) for each array that `map` returns."""
        raise self._missing_method("arrays", "it returns name -> (shape of one example, dtype)")

    def offers(self) -> dict[str, Any]:
        """Returns what the input offers, with the shape of the images that `map` returns."""
        offers, arrays = super().offers(), self.arrays()
        if "image_shape" in offers and "images" in arrays:
            offers["image_shape"] = arrays["images"][0]
        return offers

    def allows_threads(self) -> bool:
        """Returns whether the other input allows threads; `map` is traced once and has no state."""
        return type(self).examples is TensorInput.examples and self.input.allows_threads()

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Opens the data and traces `map`.

        Raises ParamError if `map` keeps state, or does not return what `arrays` says.
        """
        super().prepare(progress=progress)
        self._program()

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        examples, specs = self.input.examples(numbers), self._input_specs()
        arrays = {name: tf.constant(examples[name], dtype) for name, (_, dtype) in specs.items()}
        try:
            results = self._program()(arrays, *map(tf.constant, self._key(numbers)))
        except tf.errors.OpError as error:
            reason = error.message.partition("\t [[")[0].strip().rpartition("\n\n")[-1]
            where = f"examples {numbers.min()} to {numbers.max()}"
            raise DataError(f"{type(self).__name__}.map of {where}: {reason}") from error
        if any(len(value) != len(numbers) for value in results.values()):
            raise ParamError(f"{type(self).__name__}.map must return as many examples as it gets")
        return {name: value.numpy() for name, value in results.items()}

    def specs(self) -> dict[str, ArraySpec]:
        size = self.p.batch_size
        mine = {name: ((size, *shape), dtype) for name, (shape, dtype) in self.arrays().items()}
        return super().specs() | mine

    def fingerprint(self) -> dict[str, Any]:
        kind = type(self)
        return {**super().fingerprint(), "map": f"{kind.__module__}:{kind.__qualname__}"}

    def _key(self, numbers: np.ndarray) -> random.Key:
        """Returns random keys, two uint32 [B], for the examples with some numbers, int64 [B]."""
        root = random.fold(random.root_key(self.p.seed), random.text_hash("map"))
        return random.fold(random.fold(root, numbers >> 32), numbers)

    def _input_specs(self) -> dict[str, ArraySpec]:
        """Returns the entries of the input's `specs` for the arrays that its `examples` returns."""
        common = Input.specs(self.input)
        return {name: spec for name, spec in self.input.specs().items() if name not in common}

    def _trace_map(self) -> Callable[..., dict[str, tf.Tensor]]:
        """Returns `map`, traced for any B and checked."""
        arrays = {
            n: tf.TensorSpec((None, *s[1:]), dtype) for n, (s, dtype) in self._input_specs().items()
        }
        words = [tf.TensorSpec([None], tf.uint32)] * 2

        def program(arrays: dict[str, tf.Tensor], high: tf.Tensor, low: tf.Tensor) -> Any:
            with tf.device("CPU:0"):
                return self._check_outputs(self.map(arrays, random.Key(high, low)))

        concrete = tf.function(program, autograph=False).get_concrete_function(arrays, *words)
        for operation in stateful_operations(concrete.graph):
            raise ParamError(
                f"{type(self).__name__}.map uses {operation}. A batch must be a function of (seed,"
                " step), or no run could be resumed: draw from the key that map gets, by"
                " lingo.ops.random or tf.random.stateless_*."
            )
        return concrete

    def _check_outputs(self, results: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the results of `map` with the static shapes that `arrays` says, [B, ...]."""
        specs, name = self.arrays(), type(self).__name__
        if set(results) != set(specs):
            raise ParamError(
                f"{name}.map returns {sorted(results)}, but arrays says {sorted(specs)}"
            )
        for key, (shape, dtype) in specs.items():
            value = results[key]
            if value.dtype != dtype or not value.shape.is_compatible_with([None, *shape]):
                raise ParamError(
                    f"{name}.map returns {key!r} as {value.dtype.name} {value.shape}, but arrays"
                    f" says {dtype} {(None, *shape)}"
                )
        return {key: tf.ensure_shape(results[key], [None, *specs[key][0]]) for key in specs}


def stateful_operations(graph: tf.Graph) -> Iterator[str]:
    """Yields a phrase for each operation of a graph, and of its functions, that keeps state.

    Operations that only print, check or call do not count, nor do `tf.data`'s files and arrays.
    """
    functions = {f.signature.name: f for f in graph.as_graph_def().library.function}
    seen: set[str] = set()

    def walk(nodes: Iterable[Any], line: str) -> Iterator[str]:
        for node in nodes:
            if node.op not in _ALLOWED and graph.op_def_for_type(node.op).is_stateful:
                yield f"{node.op}, which keeps state (node {node.name!r}{line})"
            for name in _called_functions(node):
                if name in functions and name not in seen:
                    seen.add(name)
                    yield from walk(functions[name].node_def, line)

    for operation in graph.get_operations():
        yield from walk([operation.node_def], _user_line(operation))


def _called_functions(node: Any) -> Iterator[str]:
    """Yields the names of the functions that a node of a graph calls."""
    for attribute in node.attr.values():
        for function in (attribute.func, *attribute.list.func):
            if function.name:
                yield function.name


def _user_line(operation: Any) -> str:
    """Returns the user's line that made an operation: outside TensorFlow and this file."""
    tensorflow = os.path.dirname(tf.__file__)
    for frame in reversed(operation.traceback):
        if not frame.filename.startswith(tensorflow) and frame.filename != __file__:
            line = linecache.getline(frame.filename, frame.lineno).strip()
            return f", {frame.filename}:{frame.lineno}: {line}"
    return ""
