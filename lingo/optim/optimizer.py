"""The contract of an optimizer: a pure function from a weight and its gradient to the next weight.

An optimizer holds no tensors. What it remembers of a weight between steps stands in *slots*, which
the training step keeps, saves and restores beside the weight. Where a program stacks alike layers
in one tensor, the leading axes are a batch of separate weights: an optimizer that takes norms,
factors or ranks takes those of one layer, so that stacked and separate layers train alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lingo.config.params import Configurable, ParamError
from lingo.lazy import tf
from lingo.optim.schedule import ConstantRate, Schedule


class Weight(NamedTuple):
    """What an optimizer may know of a weight.

    Attributes:
        path: program path.
        names: of the separate weights that the tensor holds, row-major along the stacked axes.
        shape: of the program's tensor, stacked axes first.
        num_stacked: number of leading axes along which separate weights are stacked.
    """

    path: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    num_stacked: int = 0

    @property
    def stack_shape(self) -> tuple[int, ...]:
        """Shape of the stacked axes; () for a single weight."""
        return self.shape[: self.num_stacked]

    @property
    def rank(self) -> int:
        """Number of axes of one weight."""
        return len(self.shape) - self.num_stacked


class Slot(NamedTuple):
    """One tensor that an optimizer keeps for a weight.

    Attributes:
        shape: starts with the weight's stacked axes; the rest is one weight's.
        fill: what every element is at first.
        names: of the weights that use it, some or all of those stacked in the tensor.
    """

    shape: tuple[int, ...]
    fill: float
    names: tuple[str, ...]


class Updated(NamedTuple):
    """A weight and its slots after an update."""

    value: Any
    slots: dict[str, Any]


class Optimizer(Configurable, kind=True):
    """How weights change. Subclasses define `update`, and `slots` if they remember anything."""

    learning_rate: float  # the peak: the rate where the schedule is 1
    schedule: Schedule = ConstantRate  # factor of the learning rate, by step
    max_grad_norm: float | None = None  # gradients are scaled down to this norm over all weights
    ema_decay: float | None = None  # per step, of a moving average of the weights; None: no average

    def check(self) -> None:
        _check_common(self.p)

    def setup(self) -> None:
        self.schedule = self.p.schedule.build()

    def rate(self, step: Any) -> Any:
        """Returns the learning rate of a step.

        Args:
            step: updates done before; an int, an integer NumPy array or a tensor, any shape.

        Returns:
            float32 of the same shape: NumPy for the host's steps, a tensor for a tensor.
        """
        return self.p.learning_rate * self.schedule(step)

    def rates(self, step: Any) -> dict[str, Any]:
        """Returns every learning rate that a report should show: {tag: rate}."""
        return {"learning_rate": self.rate(step)}

    def slots(self, weight: Weight) -> dict[str, Slot]:
        """Returns what must be kept for a weight: {slot: Slot}."""
        del weight
        return {}

    def update(
        self,
        weight: Weight,
        value: tf.Tensor,
        grad: tf.Tensor,
        slots: Mapping[str, tf.Tensor],
        step: tf.Tensor,
    ) -> Updated:
        """Returns the weight and its slots after one step.

        Args:
            weight: what the tensor is.
            value: the weight, float32 [*weight.shape].
            grad: gradient of the loss, same shape and dtype, already clipped.
            slots: as `slots` declares them.
            step: integer scalar, steps done before; also those whose update was left out.
        """
        raise NotImplementedError(f"{type(self).__name__} has no update")

    def trained(self, weight: Weight) -> tuple[bool, ...]:
        """Returns of each of `weight.names` whether an update can change it."""
        return (True,) * len(weight.names)

    def check_weights(self, weights: Iterable[Weight]) -> None:
        """Raises ParamError if the patterns of this optimizer do not fit the weights of a model."""
        del weights


def select(weight: Weight, chosen: Sequence[bool], new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """Returns `new` for some of the weights stacked in a tensor and `old` for the others.

    Args:
        weight: what the tensors belong to.
        chosen: of each of `weight.names`, whether to take `new`.
        new: [*weight.stack_shape, ...].
        old: same shape and dtype.
    """
    if all(chosen):
        return new
    if not any(chosen):
        return old
    mask = tf.reshape(
        tf.constant(chosen), [*weight.stack_shape, *[1] * (len(new.shape) - weight.num_stacked)]
    )
    return tf.where(mask, new, old)


def _check_common(p: Any) -> None:
    if p.learning_rate is not None and p.learning_rate < 0:
        raise ParamError(f"learning_rate={p.learning_rate} is negative")
    if p.max_grad_norm is not None and p.max_grad_norm <= 0:
        raise ParamError(
            f"max_grad_norm={p.max_grad_norm} is not positive; None turns clipping off"
        )
    if p.ema_decay is not None and not 0 <= p.ema_decay < 1:
        raise ParamError(f"ema_decay={p.ema_decay} is not in [0, 1); None turns the average off")
