"""Finds hidden state: values that a step reads, but that are neither arguments nor checkpointed.

A step is a function of weights, states, the batch and the random key of (seed, step), so a run can
be resumed and repeated. A layer that uses a `tf.Variable`, a TensorFlow random generator or a clock
breaks this silently. `refuse_hidden_state` finds such a layer while the step is traced, since
TensorFlow reports each operation that a layer's call adds to a graph.
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
    "CollectiveReduceV2",  # a sum over replicas; its variable only puts such sums in order
    "CrossReplicaSum",  # a sum over the replicas of a TPU
    "CudnnRNN",  # random only with cuDNN's dropout, which neither TensorFlow nor Keras sets
    "CudnnRNNBackprop",
    "CudnnRNNBackpropV2",
    "CudnnRNNBackpropV3",
    "CudnnRNNV2",
    "CudnnRNNV3",
    "DebugIdentityV2",
    "DebugIdentityV3",
    "LookupTableFindV2",  # finds constants, unless something inserts into the table
    "LookupTableSizeV2",
    "NcclAllReduce",  # a sum over replicas
    "Print",
    "PrintV2",
    "StatelessRandomGetAlg",
    "XlaCallModule",  # a program of JAX
}
"""Operations that TensorFlow calls stateful, but that only print or check values, or whose state
does not affect results here."""

_CALLS = {"Case", "If", "StatefulPartitionedCall", "While"}
"""Operations that call functions. They count as stateful only if an operation in a function they
call is stateful."""


class _HiddenStateOp(NamedTuple):
    """An operation of TensorFlow that uses hidden state, and where it was called."""

    kind: Kind
    op_type: str
    where: str  # path and class of the layer, and the file and line of the code


@contextlib.contextmanager
def refuse_hidden_state() -> Iterator[None]:
    """Raises ParamError if operations traced in the `with` block use hidden state.

    Operations in functions that they call are checked, too. The message names the operation, and
    the path, class and line of the layer. Eager execution is not checked.
    """
    if tf.executing_eagerly():
        yield
        return
    from tensorflow.python.framework import op_callbacks  # TensorFlow's debugger is built on it

    traced = tf.compat.v1.get_default_graph()
    known, hidden = len(traced.get_operations()), list[_HiddenStateOp]()
    # each replica traces in its own thread, but callbacks are called for all threads
    thread = threading.get_ident()

    def inspect_operation(
        op_type: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is None or threading.get_ident() != thread:
            return
        if (kind := _kind(op_type)) is not None:
            hidden.append(_HiddenStateOp(kind, op_type, _where(inspect.currentframe())))

    op_callbacks.add_op_callback(inspect_operation)
    try:
        yield
        hidden.extend(_find_in_functions(traced, known))
    finally:  # hidden state also explains errors that TensorFlow or Keras raises because of it
        op_callbacks.remove_op_callback(inspect_operation)
        if hidden:
            raise _refusal(hidden)


def _refusal(hidden: list[_HiddenStateOp]) -> ParamError:
    """Returns the error for the first random operation or, without one, for the first operation."""
    # a generator reads its variable before it draws, but the error should name the draw
    first = min(hidden, key=lambda operation: operation.kind != "random")
    return ParamError(f"{first.where}: {first.op_type} {_ADVICE[first.kind]}")


@functools.cache
def _kind(op_type: str) -> Kind | None:
    """Returns the kind of hidden state that operations of a type use; None: no hidden state."""
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
    """Returns the layer or other Configurable whose method is innermost on the stack.

    The result is its path or class, with the file and line in the method.
    """
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Configurable):
            name = str(owner) if isinstance(owner, Layer) else type(owner).__name__
            file = frame.f_code.co_filename
            # a tf.function has a generated file, whose lines mean nothing to the user
            is_written = "__autograph_generated_file" not in file
            return f"{name}, {file}:{frame.f_lineno}" if is_written else name
        frame = frame.f_back
    return "the step"


def _find_in_functions(graph: tf.Graph, known: int) -> Iterator[_HiddenStateOp]:
    """Yields operations with hidden state in the functions that a graph's operations call.

    It finds functions that were traced earlier, which TensorFlow's callbacks do not report. Calls
    among the first `known` operations of the graph are skipped.
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
                yield _HiddenStateOp(kind, node.op, f"a tf.function, {name}")


def _called_functions(node: Any) -> Iterator[str]:
    """Yields the names of the functions that a `NodeDef`, a node of a graph, calls."""
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (function.name for function in value.list.func)
