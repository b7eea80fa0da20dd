"""The call context: what a layer's call needs beyond its inputs, in one immutable value.

A layer holds no tensors. `self.w_in` inside `__call__` looks up the current context, which holds
the weights (variables, tensors, or slices of a stack inside a scan), the training flag, the random
key and the collector of side outputs. `Repeat`, `Remat` and `vmap_layer` run layers inside a
function that TensorFlow traces, the *body*. Each trace of a body enters a derived context.

A *program path* is the key of a tensor here: a layer's path and the tensor's name, with a slice for
layers that are stacked in one tensor, as in `stack/layers/[0:12]/ffn/w_in`.

Axes: B batch.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from lingo.config.lazy import tf
from lingo.layers import path
from lingo.layers.results import Returned, explain
from lingo.ops import random
from lingo.ops.lookup import lookup

if TYPE_CHECKING:
    from lingo.layers.layer import Layer
    from lingo.layers.tree import ParamSpec


@dataclasses.dataclass(frozen=True)
class SideOutputs:
    """Tensors that layers return besides their results: losses, metrics, statistics, caches."""

    # term -> float32 scalar, the sum over the batch; summed over layers, micro-batches, replicas
    losses: dict[str, Any] = dataclasses.field(default_factory=dict)
    # name -> dict of float32 tensors; summed over layers, micro-batches and replicas
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    # program path of a state -> {"sum", "weight"}, float32; summed over micro-batches and replicas
    batch_statistics: dict[str, Any] = dataclasses.field(default_factory=dict)
    # program path of a cache -> its new value
    caches: dict[str, Any] = dataclasses.field(default_factory=dict)
    # program path of a layer whose step is `recompute_step` -> int32 [B]: 1 if the results of an
    # example's first step do not depend on later positions, else 0
    is_causal: dict[str, Any] = dataclasses.field(default_factory=dict)

    def additive_fields(self) -> dict[str, Any]:
        """Returns {field: {name: value}} of the fields that are summed over layers."""
        return {"losses": self.losses, "metrics": self.metrics}

    def per_layer_fields(self) -> dict[str, Any]:
        """Returns {field: {program path: value}} of the fields with an entry for each layer."""
        return {
            "batch_statistics": self.batch_statistics,
            "caches": self.caches,
            "is_causal": self.is_causal,
        }

    def add(self, other: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds side outputs {field: {name: value}}; values of the same name are summed."""
        for field, values in other.items():
            sums = getattr(self, field)
            for name, value in values.items():
                sums[name] = _add(sums[name], value) if name in sums else value


def _add(a: Any, b: Any) -> Any:
    return {k: _add(a[k], b[k]) for k in a} if isinstance(a, dict) else a + b


class Rules(Protocol):
    """Maps the logical axes of weights and activations to shardings over a mesh."""

    def activation(self, x: tf.Tensor, axes: tuple[str | None, ...]) -> tf.Tensor:
        """Returns an activation, any shape and type, with the sharding of its logical axes.

        `axes` has the names of `Call.mapped_axes`, then the names of the axes of `x`. The name of
        an axis that is not sharded may be None. Raises `ParamError` if the rules do not fit the
        shape.
        """
        ...

    def weight(self, x: tf.Tensor, axes: tuple[str | None, ...]) -> tf.Tensor:
        """Returns a weight, any shape and type, with the sharding in which layers read it.

        `axes` are as for `activation`.
        """
        ...

    def parts(self, axis: str) -> int:
        """Returns into how many shards a mesh splits a logical axis of activations."""
        ...

    def copies(self, axes: Iterable[str]) -> int:
        """Returns how many devices hold the same shard of an activation with the axes `axes`."""
        ...


class TableReads(Protocol):
    """Collects the rows of sparse tables that a training step looks up."""

    def read(self, where: str, table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows, float32 [..., D], of the table at a program path for ids, int32 [...].

        The table is float32 [V, D]. The gradient reaches the rows, but not the table.
        """
        ...


class Replicas(Protocol):
    """The replicas of a step: each calls all layers on an equal number of the batch's examples."""

    def gather_neighbours(self, x: tf.Tensor, num: int) -> tf.Tensor:
        """Returns the `x` of each of `num` neighbouring replicas, stacked: [num, ...].

        This replica is one of these neighbours. They are replicas 0 to num - 1, num to 2 num - 1,
        and so on; `num` divides the number of replicas. `x` is a float tensor of the same shape on
        every replica. Gradients flow to the `x` of every replica. The method works neither in loops
        nor in programs that XLA compiles.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Call:
    """The context of one call of a layer and the layers inside it."""

    weights: Mapping[str, Any]  # program path -> tensor
    # program path -> float32 moving statistic
    state: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # program path -> cache, [stacked axes, B, ...]
    caches: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # the number of positions that caches have room for, an int or int32 scalar; None: no decoding
    decode_length: Any = None
    training: bool = False  # whether dropout, jitter and batch statistics apply
    key: random.Key | None = None  # for (seed, step); None where random numbers are not allowed
    rows: Any = None  # int32 [B], the global index of each example in the step's batch
    # in a loop over stacked layers: the layers' program path -> index of the current layer, int32
    indices: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rules: Rules | None = None  # shards tensors; None on one device
    replicas: Replicas | None = None  # replicas to exchange tensors with; None: no exchange
    compiled: bool = False  # whether XLA compiles the program, which then needs static shapes
    # path of a layer -> name of its device; other layers run on the default device
    devices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # logical axes that `tf.vectorized_map` removes from every tensor, outermost first
    mapped_axes: tuple[str, ...] = ()
    # whether `weights` are what wrappers, such as `Lora` or `Quantized`, have already computed
    # (`lingo.layers.quantization.fold`)
    weights_ready: bool = False
    # whether quantization's ranges are constants of the graph, for a converter that reads them
    constant_ranges: bool = False
    frozen_weights: Collection[str] = frozenset()  # program paths of weights that no step changes
    # collects the rows that the call looks up in sparse tables; None: their gradients are dense
    table_reads: TableReads | None = None
    # program paths of weights that a loop over layers gets, but does not use; derived contexts
    # share the set
    unused_weights: set[str] = dataclasses.field(default_factory=set)
    # the latest result of a user's layer with another shape than its input, for messages; derived
    # contexts share the list
    returned: list[Returned] = dataclasses.field(default_factory=list)
    # called with the layer and the arguments of every layer's call, before the call is computed
    observer: Callable[[Layer, tuple[Any, ...], Mapping[str, Any]], None] | None = None
    # program path of a product -> function from its factors by name to the factors to multiply
    operands: Mapping[str, Callable[[Mapping[str, tf.Tensor]], list[tf.Tensor]]] = (
        dataclasses.field(default_factory=dict)
    )
    # program path of a product -> function from its weight to `Layer.result_scale`
    result_scales: Mapping[str, Callable[[tf.Tensor], tf.Tensor | None]] = dataclasses.field(
        default_factory=dict
    )
    # collects the side outputs of layers called in this context
    sides: SideOutputs = dataclasses.field(default_factory=SideOutputs)

    def of(self, layers: Sequence[Layer]) -> dict[str, dict[str, Any]]:
        """Returns {field: {program path: tensor}} of layers and the layers inside them.

        The fields are `weights`, `state` and `caches`.
        """
        paths = [where for layer in layers for where in (layer.path, *layer.shared_paths())]
        prefixes = tuple(where and f"{where}/" for where in paths)
        return {
            field: {k: v for k, v in getattr(self, field).items() if k.startswith(prefixes)}
            for field in ("weights", "state", "caches")
        }

    def derive(self, **changes: Any) -> Call:
        """Returns a copy with `changes` and, unless they give one, a new collector `sides`."""
        return dataclasses.replace(self, **{"sides": SideOutputs()} | changes)


_call: contextvars.ContextVar[Call | None] = contextvars.ContextVar("call", default=None)


def current() -> Call:
    """Returns the context of the call in progress; raises RuntimeError outside of a call."""
    call = _call.get()
    if call is None:
        raise RuntimeError(
            "a layer's weights exist only in a call:"
            " use lingo.layers.context.apply(layer, weights, ...)"
        )
    return call


def observe(layer: Layer, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Call | None:
    """Reports a layer's call to the observer of the current context, if it has one.

    Returns the context; None without an observer.
    """
    call = _call.get()
    if call is not None and call.observer is not None:
        call.observer(layer, args, keywords)
    return call


@contextlib.contextmanager
def enter_call(call: Call) -> Iterator[Call]:
    """Makes `call` the current context inside a `with` block, so that layers read from it."""
    token = _call.set(call)
    try:
        yield call
    finally:
        _call.reset(token)


def apply(
    layer: Layer,
    weights: Mapping[str, Any],
    *args: Any,
    method: str = "__call__",
    call: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[Any, SideOutputs]:
    """Calls a root layer as a pure function of its weights; returns the result and side outputs.

    `weights` maps each program path in `layer.weights()` to a tensor of its `program_shape`. `call`
    has values for further fields of `Call`. `method` is the layer's method to call.
    """
    with enter_call(Call(weights=weights, **(call or {}))) as context:
        try:
            return getattr(layer, method)(*args, **kwargs), context.sides
        except Exception as error:
            if (explained := explain(error, layer, context)) is not error:
                raise explained from error
            raise


def read(kind: str, where: str, spec: ParamSpec) -> tf.Tensor:
    """Returns a declared tensor, [*spec.shape] in its dtype, as layers read it.

    `kind` is "weights", "state" or "caches"; `where` is its program path.
    """
    call = current()
    values = getattr(call, kind)
    if where not in values:
        raise KeyError(f"{where}: the call context has no such entry among its {kind}")
    value = values[where]
    if value.dtype == tf.int8 and kind == "weights":
        value = tf.cast(value, tf.float32) * values[path.scale_of(where)]
    value = tf.cast(value, spec.dtype)
    if kind != "weights" or call.rules is None:
        return value
    return call.rules.weight(value, call.mapped_axes + spec.axes)


def look_up(where: str, spec: ParamSpec, ids: tf.Tensor) -> tf.Tensor:
    """Returns the rows of the weight at a program path; see `Layer.look_up`."""
    call = current()
    if not spec.sparse or call.table_reads is None:
        return lookup(read("weights", where, spec), ids)
    table = call.weights[where]
    if call.rules is not None:
        table = call.rules.weight(table, call.mapped_axes + spec.axes)
    return tf.cast(call.table_reads.read(where, table, ids), spec.dtype)


def annotate(x: tf.Tensor, *axes: str | None) -> tf.Tensor:
    """Returns x, any shape and type, with the sharding that the rules give to its logical axes.

    Raises ValueError if the number of axes is not the rank of x.
    """
    if len(axes) != len(x.shape):
        raise ValueError(f"{len(axes)} axes {axes} for a tensor of shape {x.shape}")
    call = current()
    return x if call.rules is None else call.rules.activation(x, call.mapped_axes + axes)
