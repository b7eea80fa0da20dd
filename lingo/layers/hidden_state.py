"""Hidden state: what a step computes from, besides its arguments, and what no checkpoint holds.

A step is a function of weights, states, the batch and the random key of (seed, step), so a run can
be resumed and repeated. A `tf.Variable`, a generator of TensorFlow's or a clock that a layer uses
breaks this silently. It is found while the step is traced: TensorFlow reports each operation that
it adds to a graph, in the call of the layer that adds it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Literal, NamedTuple

from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.layers.layer import Layer

Kind = Literal["random", "variable", "other"]

_ADVICE: dict[Kind, str] = {
    "random": "draws from a generator of TensorFlow, so no run can be repeated or resumed.\n"
    "Draw by lingo.ops.random from self.random_key(), or use the layer Dropout.",
    "variable": "uses a tf.Variable, which is neither trained nor saved.\n"
    "Declare it in setup: self.weight(...), or self.state(...) for a moving statistic; a Keras"
    " layer or model becomes a layer by Keras(factory=...).",
    "other": "may compute from more than its inputs, so a resumed run may differ.\n"
    "Compute it in the input, in NumPy, or by tf.numpy_function(..., stateful=False) if its results"
    " depend on its arguments alone.",
}

_HARMLESS = {
    "Assert",
    "CheckNumerics",
    "CheckNumericsV2",
    "CollectiveReduceV2",  # a sum over replicas; its variable only orders it among others
    "CrossReplicaSum",  # a sum over the replicas of a TPU
    "CudnnRNN",  # random only with a dropout of its own, which neither TensorFlow nor Keras sets
    "CudnnRNNBackprop",
    "CudnnRNNBackpropV2",
    "CudnnRNNBackpropV3",
    "CudnnRNNV2",
    "CudnnRNNV3",
    "DebugIdentityV2",
    "DebugIdentityV3",
    "LookupTableFindV2",  # of constants, unless something inserts into the table
    "LookupTableSizeV2",
    "NcclAllReduce",  # a sum over replicas
    "Print",
    "PrintV2",
    "StatelessRandomGetAlg",
    "XlaCallModule",  # a program of JAX
}
"""Operations that TensorFlow calls stateful, but that only report, or keep no state here."""

_CALLS = {"Case", "If", "StatefulPartitionedCall", "While"}
"""Operations that call functions, of which one has an operation that is stateful."""


class _Found(NamedTuple):
    """An operation that uses hidden state."""

    kind: Kind
    op_type: str
    where: str  # path and class of the layer, and the line of its file


@contextlib.contextmanager
def refuse_hidden_state() -> Iterator[None]:
    """Raises ParamError if what is traced inside, or a function that it calls, has hidden state.

    The message names the operation, and the path, class and line of the layer. Nothing is checked
    where operations are computed at once, instead of traced.
    """
    if tf.executing_eagerly():
        yield
        return
    from tensorflow.python.framework import op_callbacks  # TensorFlow's debugger is built on it

    traced = tf.compat.v1.get_default_graph()
    known, found = len(traced.get_operations()), list[_Found]()
    thread = threading.get_ident()  # replicas trace in threads of their own, which share callbacks

    def inspect_operation(
        op_type: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is None or threading.get_ident() != thread:
            return
        if (kind := _kind(op_type)) is not None:
            found.append(_Found(kind, op_type, _where(inspect.currentframe())))

    op_callbacks.add_op_callback(inspect_operation)
    try:
        yield
        found.extend(_find_in_functions(traced, known))
    finally:  # what is found also explains the errors of TensorFlow and Keras that follow from it
        op_callbacks.remove_op_callback(inspect_operation)
        if found:
            raise _refusal(found)


def _refusal(found: list[_Found]) -> ParamError:
    """Returns the error for the first operation; a generator's reads its variable before."""
    first = min(found, key=lambda operation: operation.kind != "random")
    return ParamError(f"{first.where}: {first.op_type} {_ADVICE[first.kind]}")


@functools.cache
def _kind(op_type: str) -> Kind | None:
    """Returns which hidden state operations of a type have; None for those that have none."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op_type)
    if definition is None or not definition.is_stateful or op_type in _HARMLESS | _CALLS:
        return None
    if op_type.startswith(("NonDeterministic", "Rng", "Stateful")) or any(
        attr.name == "seed" for attr in definition.attr
    ):
        return "random"
    is_handle = (arg.type == tf.resource.as_datatype_enum for arg in definition.input_arg)
    return "variable" if any(is_handle) else "other"


def _where(frame: FrameType | None) -> str:
    """Returns the innermost object in whose method a frame is, and the line of that method."""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Configurable):
            name = str(owner) if isinstance(owner, Layer) else type(owner).__name__
            file = frame.f_code.co_filename
            is_written = "__autograph_generated_file" not in file  # from a method's own tf.function
            return f"{name}, {file}:{frame.f_lineno}" if is_written else name
        frame = frame.f_back
    return "the step"


def _find_in_functions(graph: tf.Graph, known: int) -> Iterator[_Found]:
    """Yields operations of functions that were traced before they were called in a graph.

    The first `known` operations of the graph are not looked at.
    """
    calls = [op.node_def for op in graph.get_operations()[known:] if op.type in _CALLS]
    if not calls:
        return
    library = {f.signature.name: f for f in graph.as_graph_def().library.function}
    following = [name for call in calls for name in _called_functions(call)]
    seen: set[str] = set()
    while following:
        if (name := following.pop()) in seen:
            continue
        seen.add(name)
        for node in library[name].node_def if name in library else ():
            following.extend(_called_functions(node))
            if (kind := _kind(node.op)) is not None:
                yield _Found(kind, node.op, f"a tf.function, {name}")


def _called_functions(node: Any) -> Iterator[str]:
    """Yields the names of the functions that a node of a graph, a `NodeDef`, calls."""
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (function.name for function in value.list.func)
