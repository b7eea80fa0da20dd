"""Recurrent networks: a state passes from position to position and is reset for each document.

    gates = x w_input + bias                       # for all positions at once
    for each position:                             # one loop in the graph
        state = advance(state, gates[position])    # from zeros where a document begins
        output = state["hidden"]

Axes: B batch, T positions, D model width, G gates, H hidden width (not the head width).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.context import annotate
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm, RmsNorm
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.ops.scan import scan
from lingo.ops.shape import size_of

State = Mapping[str, Any]
"""The state of a recurrent network: name -> float32 [B, H]. One of the names is `hidden`."""


class Recurrent(Layer, interface=True):
    """A recurrent network. Subclasses define `advance`, `num_gates` and `state_names`.

    The state is float32 for every dtype of the layer, since it accumulates over thousands of
    positions.

    Weights:
        w_input: [D, G, H].
        w_hidden: [H, G, H].
        bias: [G, H], initially zeros.

    Caches:
        hidden, and each other name in `state_names`: [H].
    """

    dim: int  # width of the input
    hidden_dim: int | None = None  # H, width of the state and of the output; None: dim
    is_reversed: bool = False  # whether it reads documents from their end; it cannot decode then
    init: Initializer = FanIn  # of both matrices

    products = (Product("w_input"), Product("w_hidden", ("tanh",)))

    num_gates: ClassVar[int]
    state_names: ClassVar[tuple[str, ...]] = ("hidden",)
    num_kept: ClassVar[int | None] = None
    """Number of tensors [B, H], gates included, that the gradient keeps per position.

    None: unknown."""

    def check(self) -> None:
        ranges.check_positive(self.p, "hidden_dim")

    def setup(self) -> None:
        dim, hidden_dim, init = self.p.dim, self.output_dim, self.p.init.build()
        gates, axes = [self.num_gates, hidden_dim], (None, "mlp")
        self.w_input = self.weight("w_input", [dim, *gates], axes=("embed", *axes), init=init)
        self.w_hidden = self.weight("w_hidden", [hidden_dim, *gates], axes=(None, *axes), init=init)
        self.bias = self.weight("bias", gates, axes=axes, init=ZEROS, dtype="float32")
        for name in self.state_names:
            self.cache(name, [hidden_dim], axes=("mlp",), dtype="float32")

    @property
    def output_dim(self) -> int:
        """H, the width of the output."""
        return self.p.dim if self.p.hidden_dim is None else self.p.hidden_dim

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns the outputs for all positions, [B, T, H], in the layer's dtype.

        x is [B, T, D], any float type. The state is reset to zero where a document begins, which is
        where `position_ids` are 0. A reversed network resets the state before it reads a document's
        last position.
        """
        zeros = tf.zeros([tf.shape(x)[0], self.output_dim])
        zeros = tf.ensure_shape(zeros, [x.shape[0], self.output_dim])
        return self._run(x, dict.fromkeys(self.state_names, zeros), inputs.position_ids)[0]

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        if self.p.is_reversed:
            raise ValueError(
                f"{self.path or type(self).__name__} reads documents from their end, so it cannot"
                " write them: take is_reversed=False in a decoder"
            )
        state = {name: getattr(self, name) for name in self.state_names}
        y, state = self._run(x, state, inputs.position_ids)
        for name, value in state.items():
            self.new_cache(name, value)
        return y

    def input_gates(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the contribution of one position's input x, [B, D], to each gate.

        The result is float32 [B, G, H], the argument `gates` of `advance`.
        """
        x = tf.cast(x, self.p.dtype)
        gates = tf.einsum("bd,dgh->bgh", *self.operands("w_input", input=x))
        return tf.cast(gates, tf.float32) + self.bias

    def advance(self, state: State, gates: tf.Tensor) -> State:
        """Returns the state of a position, with the names, shapes and types of `state`.

        `state` is the state of the position before, float32 [B, H] per name. `gates`, float32
        [B, G, H], is the input's contribution to each gate.
        """
        raise NotImplementedError(f"{type(self).__name__} has no advance")

    def state_gates(self, hidden: tf.Tensor) -> tf.Tensor:
        """Returns the contribution of the state `hidden` to each gate, float32 [B, G, H].

        `hidden` is float32 [B, H].
        """
        hidden = tf.cast(hidden, self.p.dtype)
        gates = tf.einsum("bh,hgk->bgk", *self.operands("w_hidden", tanh=hidden))
        return tf.cast(gates, tf.float32)

    def flops(self, shape: Sequence[int]) -> int:
        batch, length, dim = shape
        width = self.output_dim
        return 2 * batch * length * self.num_gates * width * (dim + width)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        if self.num_kept is None:
            return None
        size = (*call.shape[:2], self.output_dim)
        kept = Residual(self.num_kept, size, ("batch", None, "mlp"), dtype="float32")
        return [batch_residual(1, call.shape, "input"), kept]

    def _run(self, x: tf.Tensor, state: State, position_ids: tf.Tensor | None) -> tuple[Any, State]:
        """Returns the outputs [B, T, H] for x [B, T, D], and the state after the last position."""
        x = tf.cast(x, self.p.dtype)
        gates = tf.einsum("btd,dgh->tbgh", *self.operands("w_input", input=x))
        inputs = {"gates": tf.cast(gates, tf.float32) + self.bias}
        if position_ids is not None:
            begins = tf.equal(tf.transpose(position_ids)[:, :, None], 0)
            # reversed: a document's last position is before the next beginning, or at the end
            if self.p.is_reversed:
                begins = tf.pad(begins[1:], [[0, 1], [0, 0], [0, 0]], constant_values=True)
            inputs["begins"] = begins

        def body(i: tf.Tensor, state: State, x: dict[str, tf.Tensor]) -> tuple[State, Any]:
            if "begins" in x:
                state = {k: tf.where(x["begins"], 0.0, v) for k, v in state.items()}
            state = self.advance(state, x["gates"])
            return state, tf.cast(state["hidden"], self.p.dtype)

        state, outputs = scan(
            body, dict(state), inputs, size_of(x, 1), is_reversed=self.p.is_reversed
        )
        return annotate(tf.transpose(outputs, [1, 0, 2]), "batch", "length", "mlp"), state


class Lstm(Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; Gers et al. 2000, sec. 3).

    The gates have the order of Keras: input, forget, candidate, output.

    Weights:
        hidden_bias: [4, H], with `use_hidden_bias`; initially zeros.
    """

    forget_bias: float = 1.0  # added to the forget gate (Jozefowicz et al. 2015, sec. 2.2)
    use_hidden_bias: bool = False  # whether gates have a second bias, as in cuDNN and PyTorch
    cell_cap: float | None = None  # the cell is clipped to [-cell_cap, cell_cap]; None: no cap

    num_gates = 4
    state_names = ("hidden", "cell")
    # 4 gates before and after their activation functions, both states, and the tanh of the cell
    num_kept = 11

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "cell_cap")

    def setup(self) -> None:
        super().setup()
        if self.p.use_hidden_bias:
            shape = [self.num_gates, self.output_dim]
            self.hidden_bias = self.weight(
                "hidden_bias", shape, axes=(None, "mlp"), init=ZEROS, dtype="float32"
            )

    def advance(self, state: State, gates: tf.Tensor) -> State:
        gates += self.state_gates(state["hidden"])
        if self.p.use_hidden_bias:
            gates += self.hidden_bias
        enter, forget, candidate, output = tf.unstack(gates, axis=1)
        cell = tf.sigmoid(forget + self.p.forget_bias) * state["cell"]
        cell += tf.sigmoid(enter) * tf.tanh(candidate)
        if self.p.cell_cap is not None:
            cell = tf.clip_by_value(cell, -self.p.cell_cap, self.p.cell_cap)
        return {"hidden": tf.sigmoid(output) * tf.tanh(cell), "cell": cell}


class Gru(Recurrent):
    """Gated recurrent unit (Cho et al. 2014, sec. 2.3). Gates: update, reset, candidate.

    The reset gate multiplies the product of state and w_hidden, not the state itself, so that each
    position needs one matrix product. This is the variant of cuDNN and of Keras's `reset_after`.
    The update gate is the share of the old state that is kept, as in Keras.

    Weights:
        hidden_bias: [H], added to the candidate's product with the state; initially zeros.
    """

    num_gates = 3
    # 3 gates before and after their activation functions, 1 - keep, the sum that the reset gate
    # multiplies, and the state
    num_kept = 9

    def setup(self) -> None:
        super().setup()
        self.hidden_bias = self.weight(
            "hidden_bias", [self.output_dim], axes=("mlp",), init=ZEROS, dtype="float32"
        )

    def advance(self, state: State, gates: tf.Tensor) -> State:
        update, reset, candidate = tf.unstack(gates, axis=1)
        by_update, by_reset, by_candidate = tf.unstack(self.state_gates(state["hidden"]), axis=1)
        keep = tf.sigmoid(update + by_update)
        reset = tf.sigmoid(reset + by_reset)
        candidate = tf.tanh(candidate + reset * (by_candidate + self.hidden_bias))
        return {"hidden": keep * state["hidden"] + (1.0 - keep) * candidate}


class BidirectionalRecurrent(Layer):
    """Two recurrent networks; the second reads from the end (Schuster and Paliwal 1997).

    The first H features of the result are the network's that reads from the beginning.
    """

    dim: int  # width of the input
    hidden_dim: int | None = None  # H, width of each network; None: dim
    network: Recurrent = Lstm  # of each direction

    def setup(self) -> None:
        dim, network = self.p.dim, self.p.network
        hidden_dim = dim if self.p.hidden_dim is None else self.p.hidden_dim
        self.forward = network.build(dim=dim, hidden_dim=hidden_dim)
        self.backward = network.build(dim=dim, hidden_dim=hidden_dim, is_reversed=True)

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [B, T, 2 H], in the layer's dtype, for x [B, T, D], any float type.

        Both networks begin anew in each document, by `position_ids`, or else by `segments`; so a
        document is read as if it were alone, and padding changes nothing.
        """
        ids = inputs.position_ids
        if ids is None and inputs.segments is not None:
            ids = _first_zeros(inputs.segments)
        documents = CallInputs(position_ids=ids)
        both = [network(x, inputs=documents) for network in (self.forward, self.backward)]
        return tf.concat(both, axis=-1)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for x of shape [B, T, D]."""
        return (*shape[:-1], self.forward.output_dim + self.backward.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        shape = tuple(shape)
        return self.forward.flops(shape) + self.backward.flops(shape)


def _first_zeros(segments: tf.Tensor) -> tf.Tensor:
    """Returns ids, int32 [B, T], that are 0 where a document begins, and at padding; else 1."""
    before = tf.pad(segments[:, :-1], [[0, 0], [1, 0]], constant_values=-1)
    return tf.cast(tf.equal(segments, before) & (segments > 0), tf.int32)


class RecurrentLayer(Layer):
    """A recurrent network with a residual connection: x + network(norm(x)).

    Such layers can be stacked deep, as in Lingvo and GNMT (Wu et al. 2016, sec. 3.1).

    Weights:
        w_output: [H, D], projects the network's output to width D; declared only if H is not D.
    """

    dim: int  # width of the input and of the output
    network: Recurrent = Lstm  # passes a state from position to position
    norm: Norm = RmsNorm  # normalizes the network's input
    dropout_rate: float = 0.0  # dropout rate of the network's output, which is added to x
    init: Initializer = FanIn  # of w_output

    products = (Product("w_output"),)

    def check(self) -> None:
        check_rate("dropout_rate", self.p.dropout_rate)

    def setup(self) -> None:
        self.norm = self.p.norm.build(dim=self.p.dim)
        self.network = self.p.network.build(dim=self.p.dim)
        if self._has_output:
            shape = [self.network.output_dim, self.p.dim]
            init = self.p.init.build()
            self.w_output = self.weight("w_output", shape, axes=("mlp", "embed"), init=init)

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Adds the network's output to x, [B, T, D], any float type.

        `Recurrent` networks read `position_ids`; other networks may read `segments`.
        """
        documents = CallInputs(segments=inputs.segments, position_ids=inputs.position_ids)
        return self._add(x, self.network(self.norm(x), inputs=documents))

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        position_ids = CallInputs(position_ids=inputs.position_ids)
        normalized = self.norm.step(x, index)
        return self._add(x, self.network.step(normalized, index, inputs=position_ids))

    def flops(self, shape: Sequence[int]) -> int:
        back = 2 * math.prod(shape) * self.network.output_dim if self._has_output else 0
        inside = self.norm.flops(shape) + self.network.flops(self.norm.output_shape(shape))
        return inside + back

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        if not self._has_output:
            return []
        return [batch_residual(1, (*call.shape[:2], self.network.output_dim))]

    @property
    def _has_output(self) -> bool:
        return self.network.output_dim != self.p.dim

    def _add(self, x: tf.Tensor, change: tf.Tensor) -> tf.Tensor:
        if self._has_output:
            change = tf.einsum("bth,hd->btd", *self.operands("w_output", input=change))
        change = dropout(self, change, rate=self.p.dropout_rate)
        return annotate(tf.cast(x, self.p.dtype) + change, "batch", "length", "embed")
