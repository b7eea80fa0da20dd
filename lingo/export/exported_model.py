"""A trained model as TensorFlow functions and variables, from which exports are made."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.data.array_spec import Specs
from lingo.decode.decoding import Decoding
from lingo.layers import context
from lingo.learner.placement import Placement
from lingo.learner.step import IS_CAUSAL, decode_batch, predict_batch
from lingo.ops import random
from lingo.ops.shape import size_of

Arrays = Mapping[str, np.ndarray]
"""NumPy arrays by name, mostly of a batch: {name: [B, ...]}."""

COUNTS = ("example_id", "rows", "weights")
"""Arrays of a batch that a caller may leave out, since they follow from the number of examples."""

_HOST_CALLS = ("EagerPyFunc", "PyFunc", "PyFuncStateless")


class Reads(NamedTuple):
    """The names of the arrays of a batch that `Task.predict` reads."""

    arrays: tuple[str, ...]  # arrays that are always read
    optional: tuple[str, ...]  # arrays that are read if `name in batch` is true, such as targets


class ExportedModel:
    """A task with trained weights, whose functions may be traced any number of times.

    `module` holds the weights: path -> variable, with stacked layers as one variable. The weights
    must come from `fold_weights` or `quantize_weights`, which divide in advance: in an exported
    program, another compiler would round differently. With `compiled`, layers compute as they do
    under XLA, with static shapes, and the weights are constants of the traced function. With
    `constant_ranges`, moving statistics are constants, too, and quantization ranges are operations
    that converters can read. With `class_names`, by label, predictions name classes.
    """

    def __init__(
        self,
        experiment: Experiment,
        weights: Arrays,
        state: Arrays,
        *,
        compiled: bool = False,
        constant_ranges: bool = False,
        class_names: Sequence[str] = (),
    ) -> None:
        self.experiment, self.task = experiment, experiment.task
        self.class_names = tuple(class_names)
        self.module: Any = tf.Module()
        hold: Any = np.asarray if compiled else tf.Variable
        self.module.weights = {where: hold(value) for where, value in weights.items()}
        hold = np.asarray if compiled or constant_ranges else tf.Variable
        self.module.state = {where: hold(value) for where, value in state.items()}
        self._place = Placement(
            compiled=compiled, weights_ready=True, constant_ranges=constant_ranges
        )

    def predict(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the outputs of `Task.predict`, {name: [B, ...]}; the batch may lack `COUNTS`."""
        outputs = predict_batch(self.task, *self._tensors(), _with_counts(batch), self._place)
        return {name: value for name, value in outputs.items() if name != "weights"}

    def decode(self, batch: Mapping[str, tf.Tensor], decoding: Decoding) -> dict[str, tf.Tensor]:
        """Returns the outputs of `Task.decode` for a batch of prompts, {name: [B, S, R + N]}.

        Random numbers follow from seed 0 and the batch's `rows`. S is the number of texts that are
        generated per prompt, R the width of the batch's `rest`, N the number of new positions.
        """
        key = random.Key(*map(tf.constant, random.root_key(0)))
        weights, state = self._tensors()
        outputs = decode_batch(self.task, weights, state, batch, decoding, key, self._place)
        return {name: value for name, value in outputs.items() if not name.startswith(IS_CAUSAL)}

    def reads(self, specs: Specs) -> Reads:
        """Returns the names of the arrays that `Task.predict` reads from a batch with these specs.

        Raises ParamError if the task has no predictions.
        """
        recorder = _Recorder()

        def trace(**batch: tf.Tensor) -> Any:
            recorder.update(batch)
            weights, state = self._tensors()
            call = {"state": state, "rows": batch["rows"], **self._place.call_fields()}
            return context.apply(self.task, weights, recorder, method="predict", call=call)[0]

        signature = {name: tf.TensorSpec(shape, dtype) for name, (shape, dtype) in specs.items()}
        tf.function(trace, autograph=False).get_concrete_function(**signature)
        names = [name for name in specs if name not in COUNTS]
        return Reads(
            arrays=tuple(n for n in names if n in recorder.read and n not in recorder.asked),
            optional=tuple(n for n in names if n in recorder.asked),
        )

    def refuse_foreign(self, graph: tf.Graph) -> None:
        """Raises ParamError if a graph has operations that only this process can compute.

        The error names the layer. Stateful operations, such as tables and `tf.py_function`, are
        refused earlier, in exports and elsewhere (`lingo/layers/hidden_state.py`).
        """
        definition = graph.as_graph_def()
        functions = definition.library.function
        nodes = [*definition.node, *(node for f in functions for node in f.node_def)]
        names = {f.signature.name for f in functions}
        for node in nodes:
            if node.op not in names and (reason := _foreign(node.op)):
                raise ParamError(f"{self.owner(node.name)}: {node.op} {reason}")

    def owner(self, *operations: str) -> str:
        """Returns the path of the layer to which the first of some named operations belongs.

        Operations whose names contain no layer are skipped; if no name does, the path is "task".
        """
        for parts in (operation.split("/") for operation in operations):
            for size in range(len(parts), 0, -1):
                scope = "/".join(parts[:size])
                for layer in self.task.tree():
                    if layer.path == scope or layer.path.endswith(f"/{scope}"):
                        return f"task.{layer.path.replace('/', '.')}"
        return "task"

    def _tensors(self) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Returns the weights, and the moving statistics, as tensors.

        Both are path -> tensor, with stacked layers as one tensor [*stacked axes, ...]. Weights are
        int8 with scales, or have the layers' dtype. Statistics are float32.
        """
        weights, state = (
            {where: tf.convert_to_tensor(variable) for where, variable in variables.items()}
            for variables in (self.module.weights, self.module.state)
        )
        return weights, state


class _Recorder(dict[str, Any]):
    """A batch that records which of its arrays are read, and which are tested with `in`."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self.keys() else default


@functools.cache
def _foreign(kind: str) -> str:
    """Returns why other programs cannot compute operations of a type; "" if they can."""
    from tensorflow.python.framework import kernels

    if kind in _HOST_CALLS:
        return "calls Python, which no other program can: use operations of TensorFlow instead"
    known = {kernel.device_type for kernel in kernels.get_registered_kernels_for_op(kind).kernel}
    if known.isdisjoint(("CPU", "DEFAULT")):
        return "has no kernel for one CPU: use operations that have one, or leave it to runtimes"
    return ""


def _with_counts(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    size = size_of(next(iter(batch.values())), 0)
    rows = tf.range(size)
    counts = {"example_id": tf.cast(rows, tf.int64), "rows": rows, "weights": tf.ones([size])}
    return counts | dict(batch)
