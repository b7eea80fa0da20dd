"""Dropout of activations and of whole residual branches.

The random mask depends on the layer, the step and the example, so it does not depend on how a batch
is split over devices.

Axes: B batch, T positions, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall
from lingo.ops import dropout as ops
from lingo.ops.dropout import DropoutForm
from lingo.ops.random import Part


class Dropout(Layer):
    """Zeroes parts of its input at random in training, else does nothing (Srivastava et al. 2014).

    `form` says what is zeroed together: a single element, a feature at all positions, a position
    with all its features (on embeddings: token dropout), or a whole example (stochastic depth).
    """

    rate: float = 0.1  # probability of a zero, in [0, 1)
    form: DropoutForm = "element"  # what is zeroed together

    positionwise = True

    def check(self) -> None:
        check_rate("rate", self.p.rate)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result."""
        return tuple(shape)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Zeroes parts of x, [B, ..., T, D], any float type, and scales up the other values."""
        return dropout(self, x, rate=self.p.rate, form=self.p.form)


def check_rate(field: str, rate: float) -> None:
    """Raises ParamError if the value of a dropout rate field is not in [0, 1)."""
    if not 0 <= rate < 1:
        raise ParamError(f"{field}={rate} is not in [0, 1): it is the probability of a zero")


def dropout(
    layer: Layer, x: tf.Tensor, *, rate: float, form: DropoutForm = "element", name: str = "dropout"
) -> tf.Tensor:
    """Returns a layer's activations x, [B, ...] of any float type, with dropout in training.

    `form` is as in `lingo.ops.dropout`. If a layer drops two tensors, give each its own `name`, so
    that their masks differ. In training, dropout raises RuntimeError if the call context has no
    `key` or no `rows`.
    """
    drop = partial_dropout(layer, rate=rate, form=form, name=name)
    return x if drop is None else drop(x, None)


def partial_dropout(
    layer: Layer, *, rate: float, form: DropoutForm = "element", name: str = "dropout"
) -> Callable[[tf.Tensor, Part | None], tf.Tensor] | None:
    """Returns a function like `dropout` that gets a part of a tensor; None if nothing is dropped.

    The function drops the elements that `dropout` drops in the whole tensor. It takes the part's
    values, and a `Part` that says where the part lies (None: it is the whole tensor). It may be
    called after the layer's call has returned, for example in a gradient. Arguments and errors are
    as for `dropout`.
    """
    call = context.current()
    if not call.training or rate == 0:
        return None
    key = layer.random_key(name)
    if call.rows is None:
        where = layer.path or type(layer).__name__
        raise RuntimeError(f"{where}: dropout needs the rows of its examples in the call context")
    rows = call.rows
    return lambda x, part: ops.dropout(x, rate=rate, key=key, rows=rows, form=form, part=part)


class StochasticDepth(Layer):
    """Zeroes a residual branch in training, for each example by itself (Huang et al. 2016, sec. 3).

    In training, a branch that survives is divided by its probability of survival, 1 - `rate`.
    Outside training the branch is unchanged. Departs from the paper, where evaluation multiplies
    instead. Whether a branch is zeroed depends only on the layer, the step and the example, not on
    micro-batches or replicas. A zeroed branch is computed, too, so no time is saved.
    """

    rate: float = 0.2  # probability that a branch is zeroed, in [0, 1)

    positionwise = True

    def check(self) -> None:
        check_rate("rate", self.p.rate)

    def __call__(self, branch: tf.Tensor) -> tf.Tensor:
        """Returns for each example its branch or zeros; `branch` is [B, ...], any float type."""
        return dropout(self, branch, rate=self.p.rate, form="example")

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result."""
        return tuple(shape)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []
