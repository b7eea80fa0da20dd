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
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import ArraySpec
from lingo.data.index import Progress
from lingo.data.input import Input
from lingo.data.prompt import Prompt
from lingo.data.sources.files import DataError
from lingo.ops import random

_CALLS = ("If", "While", "Case", "StatefulPartitionedCall")  # as stateful as what they call
_HARMLESS = ("Assert", "Print", "PrintV2", "CheckNumericsV2")  # stateful, but change no value


class TensorInput(Input):
    """Another input's examples, changed in TensorFlow.

    A subclass defines the change (`map`) and its results' shapes and dtypes (`arrays`), which are
    known before any data is read. The other input is built with the `batch_size`, `seed` and
    `repeat` of this one.

    Attributes:
        input: the built input whose examples are changed.
    """

    input: Input  # where the examples come from

    def setup(self) -> None:
        p = self.p
        self.input = p.input.build(batch_size=p.batch_size, seed=p.seed, repeat=p.repeat)
        if type(self.input).examples is Input.examples:
            raise ParamError(f"input: {type(self.input).__name__} has no rows of one shape")
        if (self.input.p.repeat, self.input.p.batch_size) != (p.repeat, p.batch_size):
            raise ParamError("input: set batch_size and repeat of the input around it")
        if self.input.p.max_batches is not None:
            raise ParamError("input: set max_batches of the input around it")
        if hasattr(self.input, "tokenizer"):
            self.tokenizer = self.input.tokenizer
        self._program = functools.cache(self._trace_map)

    def map(self, arrays: dict[str, tf.Tensor], key: random.Key) -> dict[str, tf.Tensor]:
        """Returns the task's arrays of some examples; it is traced, and runs on the CPU.

        Args:
            arrays: {name: [B, ...]}, the arrays of the input; dtypes as in its `specs`.
            key: uint32 words [B], a random key of (seed, `example_id`) for `lingo.ops.random`;
                `tf.bitcast(tf.stack(key, -1), tf.int32)`, int32 [B, 2], has a seed of each example
                for `tf.random.stateless_*`.

        Returns:
            {name: [B, ...]}, with the shapes and dtypes of `arrays`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no map")

    def arrays(self) -> dict[str, ArraySpec]:
        """Returns name -> (shape of one example, dtype) of what `map` returns."""
        raise NotImplementedError(f"{type(self).__name__} has no arrays")

    def prompt(self, text: str) -> Prompt:
        return self.input.prompt(text)

    def offers(self) -> dict[str, Any]:
        return self.input.offers()

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Opens the data, and traces `map`.

        Raises:
            DataError: if data is missing or cannot be read.
            ParamError: if `map` keeps state, or does not return what `arrays` says.
        """
        self.input.prepare(progress=progress)
        self._program()

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        arrays, key = self.input.examples(numbers), self._key(numbers)
        given = {
            name: tf.constant(arrays[name], dtype)
            for name, (_, dtype) in self._given_specs().items()
        }
        try:
            found = self._program()(given, *map(tf.constant, key))
        except tf.errors.OpError as error:
            reason = error.message.partition("\t [[")[0].strip().rpartition("\n\n")[-1]
            where = f"examples {numbers.min()} to {numbers.max()}"
            raise DataError(f"{type(self).__name__}.map of {where}: {reason}") from error
        if any(len(value) != len(numbers) for value in found.values()):
            raise ParamError(f"{type(self).__name__}.map does not return an example for each")
        return {name: value.numpy() for name, value in found.items()}

    def specs(self) -> dict[str, ArraySpec]:
        size = self.p.batch_size
        mine = {name: ((size, *shape), dtype) for name, (shape, dtype) in self.arrays().items()}
        return super().specs() | mine

    def num_examples(self) -> int:
        return self.input.num_examples()

    def num_items(self) -> int:
        return self.input.num_items()

    def origins(self, numbers: np.ndarray) -> list[str]:
        return self.input.origins(numbers)

    def fingerprint(self) -> dict[str, Any]:
        kind = type(self)
        return {**self.input.fingerprint(), "map": f"{kind.__module__}:{kind.__qualname__}"}

    def remarks(self) -> list[str]:
        return self.input.remarks()

    def _key(self, numbers: np.ndarray) -> random.Key:
        """Returns the random keys of examples, uint32 words [B]; numbers: int64 [B]."""
        root = random.fold(random.root_key(self.p.seed), random.text_hash("map"))
        return random.fold(random.fold(root, numbers >> 32), numbers)

    def _given_specs(self) -> dict[str, ArraySpec]:
        """Returns the entries of the input's `specs` that its `examples` returns."""
        known = Input.specs(self.input)
        return {name: spec for name, spec in self.input.specs().items() if name not in known}

    def _trace_map(self) -> Callable[..., dict[str, tf.Tensor]]:
        """Returns `map`, traced for any B and checked."""
        given = {
            n: tf.TensorSpec((None, *s[1:]), dtype) for n, (s, dtype) in self._given_specs().items()
        }
        words = [tf.TensorSpec([None], tf.uint32)] * 2

        def program(arrays: dict[str, tf.Tensor], high: tf.Tensor, low: tf.Tensor) -> Any:
            with tf.device("CPU:0"):
                return self._check_outputs(self.map(arrays, random.Key(high, low)))

        traced = tf.function(program, autograph=False).get_concrete_function(given, *words)
        for use in stateful(traced.graph):
            raise ParamError(
                f"{type(self).__name__}.map uses {use}. A batch is a function of (seed, step), or"
                " no run could be resumed: draw from the key that map is given, by lingo.ops.random"
                " or tf.random.stateless_*."
            )
        return traced

    def _check_outputs(self, found: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the results of `map` with the static shapes of `arrays`, [B, ...].

        Raises:
            ParamError: if names, shapes or dtypes contradict `arrays`.
        """
        wanted, name = self.arrays(), type(self).__name__
        if set(found) != set(wanted):
            raise ParamError(
                f"{name}.map returns {sorted(found)}, but arrays says {sorted(wanted)}"
            )
        checked = {}
        for key, (shape, dtype) in wanted.items():
            value = found[key]
            if value.dtype != dtype or not value.shape.is_compatible_with([None, *shape]):
                raise ParamError(
                    f"{name}.map returns {key!r} as {value.dtype.name} {value.shape}, but arrays"
                    f" says {dtype} {(None, *shape)}"
                )
            checked[key] = tf.ensure_shape(value, [None, *shape])
        return checked


class Stateful(NamedTuple):
    """An operation that keeps state.

    Attributes:
        kind: type of the operation, such as RandomUniform.
        node: its name in the graph.
        place: file, line and text of the code that made it, or "".
    """

    kind: str
    node: str
    place: str

    def __str__(self) -> str:
        """Returns the operation in words, for a message."""
        where = f", {self.place}" if self.place else ""
        return f"{self.kind}, which keeps state (node {self.node!r}{where})"


def stateful(graph: Any) -> Iterator[Stateful]:
    """Yields the operations in a graph, and in the functions it calls, that keep state.

    Operations that only print, check or call do not count.

    Args:
        graph: a `tf.Graph`.
    """
    functions = {f.signature.name: f for f in graph.as_graph_def().library.function}
    seen: set[str] = set()

    def inside(nodes: Iterable[Any], place: str) -> Iterator[Stateful]:
        for node in nodes:
            if node.op not in (*_CALLS, *_HARMLESS) and graph.op_def_for_type(node.op).is_stateful:
                yield Stateful(node.op, node.name, place)
            for name in _called_functions(node):
                if name in functions and name not in seen:
                    seen.add(name)
                    yield from inside(functions[name].node_def, place)

    for operation in graph.get_operations():
        yield from inside([operation.node_def], _place(operation))


def _called_functions(node: Any) -> Iterator[str]:
    """Yields the names of the functions that a node of a graph calls."""
    for attribute in node.attr.values():
        for function in (attribute.func, *attribute.list.func):
            if function.name:
                yield function.name


def _place(operation: Any) -> str:
    """Returns the innermost line that made an operation, outside TensorFlow and this file."""
    theirs = os.path.dirname(tf.__file__)
    for frame in reversed(operation.traceback):
        if not frame.filename.startswith(theirs) and frame.filename != __file__:
            line = linecache.getline(frame.filename, frame.lineno).strip()
            return f"{frame.filename}:{frame.lineno}: {line}"
    return ""
