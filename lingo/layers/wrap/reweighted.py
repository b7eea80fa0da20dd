"""Wrappers that replace the weights of the layer inside by functions of them, such as LoRA.

    for each matrix w of the layer inside that `pattern` matches:     # at setup
        declare companion weights, such as w_in_lora_a and w_in_lora_b
    call the layer inside with reweight(w) in place of w              # in a derived call context

A *matrix* is a weight with several dims whose initial value is not constant. A bias is not one. Its
leading dims are *inputs*, and its other dims are *outputs*. For example, a weight [N, H, D] with a
fan-in of N * H has the inputs N and H and the output D.

Axes: I input dims of a matrix, O output dims.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.config.regex import check_regex
from lingo.layers import context, path
from lingo.layers.initial import FAN_IN, ONES, ZEROS, Constant, Initializer
from lingo.layers.tree import ParamSpec
from lingo.layers.wrap.wrapper import Wrapper


class Matrix(NamedTuple):
    """A weight, of the layer inside a wrapper, that the wrapper replaces."""

    name: str  # path from the wrapper, with a slice as index for stacked layers
    spec: ParamSpec  # declaration of the weight
    inputs: tuple[int, ...]  # sizes of the input dims
    outputs: tuple[int, ...]  # sizes of the output dims
    input_axes: tuple[str | None, ...]  # logical axes of the input dims
    output_axes: tuple[str | None, ...]  # logical axes of the output dims

    def stack_sizes(self, w: tf.Tensor) -> list[Any]:
        """Returns the sizes of the stacked axes of w, a value of this matrix.

        w is [stacked axes, *I, *O].
        """
        return list(w.shape[: len(w.shape) - len(self.spec.shape)])


class Reweighted(Wrapper, interface=True):
    """Base class of wrappers that replace matrices of the layer inside.

    Subclasses define `declare` and `reweight`.
    """

    # regex for the matrices to replace; it must match a matrix's whole path from the layer inside
    pattern: str = ".*"

    def check(self) -> None:
        check_regex(self.p.pattern)

    def setup(self) -> None:
        super().setup()
        matrices = [split_dims(spec) for spec in self.layer.weights().values() if is_matrix(spec)]
        self.matrices = [m for m in matrices if self._matches(m)]
        if not self.matrices:
            names = ", ".join(m.name for m in matrices[:5]) or "none"
            raise ParamError(
                f"pattern={self.p.pattern!r} matches no matrix of the"
                f" {type(self.layer).__name__} inside; it has {names}"
            )
        for matrix in self.matrices:
            self.declare(matrix)

    def declare(self, matrix: Matrix) -> None:
        """Declares the further weights that `reweight` needs, each by `companion_weight`."""
        raise NotImplementedError(f"{type(self).__name__} has no declare")

    def reweight(self, matrix: Matrix, w: tf.Tensor) -> tf.Tensor:
        """Returns the weight to use in place of w, both float32 [stacked axes, *I, *O]."""
        raise NotImplementedError(f"{type(self).__name__} has no reweight")

    def companion_weight(
        self,
        matrix: Matrix,
        suffix: str,
        shape: Sequence[int],
        *,
        axes: Sequence[str | None],
        init: Initializer,
        fan_in: int | None = None,
    ) -> None:
        """Declares a float32 weight `<name of the matrix>_<suffix>`, stacked like the matrix.

        `shape` and `axes` are for one layer; `init` and `fan_in` are as for `Layer.weight`.
        """
        name = f"{matrix.name}_{suffix}"
        self.weight(name, shape, axes=axes, init=init, fan_in=fan_in, dtype="float32")
        stack_axes = matrix.spec.stack_axes
        self._weights[name] = self._weights[name]._replace(stack_axes=stack_axes)

    def read(self, matrix: Matrix, suffix: str) -> tf.Tensor:
        """Returns a weight that `companion_weight` declared, float32 [stacked axes, *shape]."""
        return context.current().weights[path.join(self.path, f"{matrix.name}_{suffix}")]

    def call_wrapped(self, method: str, *args: Any, **inputs: Any) -> Any:
        call = context.current()
        if call.weights_ready:
            return getattr(self.layer, method)(*args, **inputs)
        weights = {**call.weights, **self.matrix_values()}
        with context.enter_call(call.derive(weights=weights, sides=call.sides)):
            return getattr(self.layer, method)(*args, **inputs)

    def result_scale(self, product: str) -> tf.Tensor | None:
        return self.call_wrapped("result_scale", product)  # the scale of the replaced weight

    def matrix_values(self) -> dict[str, tf.Tensor]:
        """Returns path -> the matrix that replaces the one at this path, in the current call.

        Each is [stacked axes, *I, *O]; layers that are stacked have one tensor.
        """
        weights = context.current().weights
        matrices = {path.join(self.path, matrix.name): matrix for matrix in self.matrices}
        return {where: self.reweight(m, weights[where]) for where, m in matrices.items()}

    def _matches(self, matrix: Matrix) -> bool:
        matched = {bool(re.fullmatch(self.p.pattern, name)) for name in path.names(matrix.name)}
        if len(matched) > 1:
            raise ParamError(
                f"pattern={self.p.pattern!r} matches some of the layers stacked in {matrix.name}"
                " and not others: put the wrapper inside the stack, or match all"
            )
        return matched.pop()


def is_matrix(spec: ParamSpec) -> bool:
    """Returns whether a weight has several dims and a random initial value, unlike a bias."""
    return len(spec.shape) > 1 and not isinstance(spec.init, Constant)


def split_dims(spec: ParamSpec) -> Matrix:
    """Splits a weight's dims into inputs and outputs.

    The inputs are the leading dims whose product is the fan-in, or else the first dim.
    """
    sizes = [math.prod(spec.shape[:n]) for n in range(1, len(spec.shape))]
    n = sizes.index(spec.fan_in) + 1 if spec.fan_in in sizes else 1
    return Matrix(spec.path, spec, spec.shape[:n], spec.shape[n:], spec.axes[:n], spec.axes[n:])


class Lora(Reweighted):
    """Computes with w + alpha / rank * a b, where b is initially zero (Hu et al. 2021, sec. 4.1).

    Let the optimizer freeze the layer's own weights: `ByPath.params(learning_rate=...,
    groups={".*_lora_[ab]": AdamW, "(?!.*_lora_).*": Frozen})`. Departs from the paper: there is no
    dropout before a, since the change is added to the matrix, not to the output.

    Weights, for each matrix with input sizes I and output sizes O:
        <name>_lora_a: [*I, rank].
        <name>_lora_b: [rank, *O].
    """

    rank: int = 8  # rank of a b, the change of w
    alpha: float = 8.0  # factor of the change, which is alpha / rank * a b

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "rank")

    def declare(self, matrix: Matrix) -> None:
        rank, fan_in = self.p.rank, math.prod(matrix.inputs)
        shape, axes = [*matrix.inputs, rank], (*matrix.input_axes, None)
        self.companion_weight(matrix, "lora_a", shape, axes=axes, init=FAN_IN, fan_in=fan_in)
        shape, axes = [rank, *matrix.outputs], (None, *matrix.output_axes)
        self.companion_weight(matrix, "lora_b", shape, axes=axes, init=ZEROS)

    def reweight(self, matrix: Matrix, w: tf.Tensor) -> tf.Tensor:
        rank, stacked = self.p.rank, matrix.stack_sizes(w)
        a = tf.reshape(self.read(matrix, "lora_a"), [*stacked, math.prod(matrix.inputs), rank])
        b = tf.reshape(self.read(matrix, "lora_b"), [*stacked, rank, math.prod(matrix.outputs)])
        return w + self.p.alpha / rank * tf.reshape(a @ b, w.shape)


_TINY = 1e-12  # keeps the gradient of a norm finite at zero


class WeightNorm(Reweighted):
    """Computes with scale * w / |w| (Salimans and Kingma 2016, eq. 2).

    The norm |w| of an output is over its inputs. Departs from the paper: the scale is relative to
    the expected norm of a matrix with variance 1 / fan-in, and starts at 1 instead of a value
    computed from a batch.

    Weights, for each matrix with output sizes O:
        <name>_scale: [*O], initially ones.
    """

    def declare(self, matrix: Matrix) -> None:
        self.companion_weight(matrix, "scale", matrix.outputs, axes=matrix.output_axes, init=ONES)

    def reweight(self, matrix: Matrix, w: tf.Tensor) -> tf.Tensor:
        first = len(matrix.stack_sizes(w))
        inputs = list(range(first, first + len(matrix.inputs)))
        square = tf.reduce_sum(tf.square(w), axis=inputs, keepdims=True)
        length = math.sqrt(math.prod(matrix.inputs) / matrix.spec.fan_in)
        scale = tf.reshape(self.read(matrix, "scale"), square.shape)
        return length * scale * w * tf.math.rsqrt(square + _TINY)
