"""The contract of an optimizer: a pure function from a weight and its gradient to the next weight.

    gradients = optimizer.clip(weights, gradients, norm)   # all weights together
    rates = optimizer.rates(step)                             # once per step
    after = optimizer.update(Update(weight, value, gradient, slots, step, rates))  # per weight

An optimizer holds no tensors. Its state per weight is in *slots*, which the training step keeps,
saves and restores with the weight. If a program stacks equal layers in one tensor, the leading axes
are a batch of separate weights: an optimizer that computes norms, factors or ranks computes them
per layer, so that stacked layers train exactly like separate ones.

Where devices update equal chunks of a weight, the update's tensors are *in rows*: each part of the
weight is flattened to a row and padded (`row_columns`). Then `Weight.row_columns` is set, and
`shape`, `rank` and `names` still describe the whole weight. `weight_sum` sums either form. Only
classes with `takes_rows = True` get tensors in rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.config.roots.user_line import definition_line
from lingo.ops.kind import describe_kind
from lingo.optim.pattern import check_patterns, check_used, match_patterns
from lingo.optim.plateau import Plateau
from lingo.optim.row_columns import RowColumns
from lingo.optim.run_length import KnownLength, RunLength
from lingo.optim.schedule import ConstantRate, Schedule

_CHECKED_STEPS = 1000  # how many steps `check_rates` looks at


class Weight(NamedTuple):
    """Describes a weight, or several weights that a program stacks in one tensor."""

    path: str  # path of the tensor in the program, where stacked layers are one tensor
    names: tuple[str, ...]  # names of the separate weights in the tensor, row-major
    shape: tuple[int, ...]  # of the program's tensor, stacked axes first
    num_stacked: int = 0  # leading axes along which separate weights are stacked
    # Set if the update's tensors are in rows, [*stack_shape, P, C]: says which columns these
    # tensors have.
    row_columns: RowColumns | None = None
    fan_in: int | None = None  # number of inputs that each output of the layer sums, if known
    dims: tuple[str | None, ...] = ()  # logical axis of each axis of one weight, if known
    # Whether a step updates only the rows of a table, [V, D], that its batch looked up. Then the
    # update's tensors are these rows, [N, D], and `shape` still describes the whole table.
    sparse: bool = False

    @property
    def stack_shape(self) -> tuple[int, ...]:
        """Sizes of the stacked axes; () for a single weight."""
        return self.shape[: self.num_stacked]

    @property
    def rank(self) -> int:
        """Number of axes of one weight."""
        return len(self.shape) - self.num_stacked

    @property
    def axes(self) -> list[int]:
        """Indices of the axes of one weight in its tensors: all axes but the stacked axes."""
        return list(
            range(self.num_stacked, self.num_stacked + (2 if self.row_columns else self.rank))
        )

    @property
    def size(self) -> int:
        """Number of elements of one weight."""
        return math.prod(self.shape[self.num_stacked :])


class Slot(NamedTuple):
    """One tensor that an optimizer keeps for a weight.

    A slot is split over devices like its weight: the slot's axis i is the axis `axes[i]` of the
    weight's tensor, or no axis of it if `axes[i]` is None. `axes=None`: the slot has all axes of
    the weight's tensor, in order.
    """

    shape: tuple[int, ...]  # sizes of the weight's stacked axes, then of one weight's slot
    fill: float  # initial value of every element
    names: tuple[str, ...]  # names of the weights in the tensor that use the slot
    axes: tuple[int | None, ...] | None = None


class Update(NamedTuple):
    """What `Optimizer.update` gets for one weight."""

    weight: Weight
    value: Any  # the weight, float32 [*weight.shape], or in rows
    gradient: Any  # the loss's gradient, already clipped; same shape and dtype
    # The tensors that `Optimizer.slots` declares, float32: in rows if they have the weight's shape.
    slots: Mapping[str, Any]
    step: Any  # integer scalar, number of steps done before, skipped updates included
    rates: Mapping[str, Any]  # `Optimizer.rates` of the step, so that a schedule is traced once

    @property
    def rate(self) -> Any:
        """The learning rate of the step, a float32 scalar."""
        return self.rates["learning_rate"]


class UpdatedWeight(NamedTuple):
    """A weight, float32 [*weight.shape], and its slots after an update."""

    value: Any
    slots: dict[str, Any]


class Move(NamedTuple):
    """What is subtracted from a weight, float32 [*weight.shape], and the slots after the step."""

    decrement: Any
    slots: dict[str, Any]


class Optimizer(Configurable, interface=True):
    """Updates weights. Subclasses define `move`, and `slots` if they need any.

    Weight decay is decoupled (Loshchilov & Hutter 2019): before it moves, a weight is multiplied by
    1 - learning rate * weight_decay, whatever its gradient is.
    """

    learning_rate: float  # the peak: the rate where the schedule is 1
    schedule: Schedule = ConstantRate  # factor of the learning rate, by step
    plateau: Plateau | None = None  # another factor, which falls if evaluations stop improving
    weight_decay: float = 0.0  # fraction of a weight removed per step, times the learning rate
    min_decay_rank: int = 2  # weights with fewer axes (scales, most biases) do not decay
    no_decay: tuple[str, ...] = ()  # regular expressions of whole names: these weights do not decay
    max_grad_value: float | None = None  # gradients are cut to -max_grad_value..max_grad_value
    max_weight_grad_norm: float | None = None  # each weight's gradient is scaled down to this norm
    max_grad_norm: float | None = None  # gradients are scaled down to this norm over all weights
    # gradients become zeros if their norm over all weights is larger; None: they never do
    discard_grad_norm: float | None = None
    ema_decay: float | None = None  # per step, for averages of weights and statistics; None: off
    ema_warmup: bool = False  # after n steps, ema_decay is at most (1 + n) / (10 + n)
    average_steps: int | None = None  # averages are means over this many last steps; None: no means
    slot_steps: int = 0  # steps of slots that were read; counted by `move`, not by schedules

    _run: RunLength = KnownLength(0)  # 0 steps: there is no run

    takes_rows: ClassVar[bool] = False
    """Whether the class updates weights in rows correctly (`Weight.row_columns`). Subclasses may
    compute something else, so they do not inherit it. If False, weights keep their own shape.
    """

    skips_zeros: ClassVar[bool] = False
    """Whether `move` changes neither an element whose gradient is 0, nor its slots. Then a step
    needs no update for rows of sparse tables (`Weight.sparse`) that it did not look up. Subclasses
    do not inherit it.
    """

    def check(self) -> None:
        ranges.check_finite(self.p)
        ranges.check_not_negative(
            self.p, "learning_rate", "weight_decay", "min_decay_rank", "slot_steps"
        )
        ranges.check_positive(self.p, "max_grad_value", "max_weight_grad_norm", "max_grad_norm")
        ranges.check_positive(self.p, "discard_grad_norm", "average_steps")
        ranges.check_fraction(self.p, "ema_decay")
        if self.p.ema_warmup and self.p.ema_decay is None:
            raise ParamError("ema_warmup=True needs ema_decay, which is None")
        if self.p.average_steps is not None and self.p.ema_decay is not None:
            raise ParamError("ema_decay and average_steps are two averages: set one of them")
        check_patterns(self.p.no_decay)

    def setup(self) -> None:
        self.schedule = self.p.schedule.build()
        self.plateau = self.p.plateau and self.p.plateau.build()

    def rates(self, step: Any) -> dict[str, Any]:
        """Returns {tag: learning rate} of a step, for `update` and reports.

        A rate is a float32 scalar or has the shape of `step`, like a schedule's factor. The tag of
        the only or largest rate is `learning_rate`.
        """
        return {"learning_rate": self.p.learning_rate * self.schedule(step)}

    def schedules(self) -> list[Schedule]:
        """Returns the schedules of all learning rates."""
        return [self.schedule]

    def ends_with_run(self) -> bool:
        """Returns whether a schedule depends on the run's number of steps."""
        has_mean = self.p.average_steps is not None
        return has_mean or any(schedule.ends_with_run() for schedule in self.schedules())

    def end_with(self, run: RunLength) -> None:
        """Tells the optimizer and its schedules how long the run is."""
        self._run = run
        for schedule in self.schedules():
            schedule.end_with(run)

    def counts_epochs(self) -> bool:
        """Returns whether a schedule counts epochs."""
        return any(schedule.counts_epochs() for schedule in self.schedules())

    def check_rates(self, num_steps: int) -> None:
        """Raises ParamError if a learning rate is negative or not finite in a run of `num_steps`.

        Up to 1,000 steps are checked. A schedule that only takes tensors is not checked.
        """
        steps = np.unique(np.linspace(0, num_steps - 1, _CHECKED_STEPS).astype(np.int64))
        try:
            with np.errstate(all="ignore"):
                rates = self.rates(steps)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return
        for tag, rate in rates.items():
            values = np.broadcast_to(np.asarray(rate), steps.shape)
            wrong = np.flatnonzero(~np.isfinite(values) | (values < 0))
            if len(wrong):
                raise ParamError(
                    f"optimizer: {tag} is {values[wrong[0]]:.6g} at step {steps[wrong[0]]}, after"
                    f" the schedule {type(self.schedule).__name__}: it has to be finite, 0 or above"
                )

    @property
    def keeps_averages(self) -> bool:
        """Whether each weight and moving statistic has an average, in the slot `ema`."""
        return self.p.ema_decay is not None or self.p.average_steps is not None

    def ema_rate(self, step: Any) -> Any:
        """Returns 1 - the averages' decay at a step, a float or float32 scalar.

        `step` is an integer scalar, the number of steps done before. The result is None without
        averages. With `average_steps` an average is the weight itself until the window begins,
        then the mean since then (Izmailov et al. 2018).
        """
        if self.p.average_steps is not None:
            start = max(self._run.steps - self.p.average_steps, 0)
            return 1.0 / tf.maximum(tf.cast(step - start, tf.float32) + 1.0, 1.0)
        if self.p.ema_decay is None:
            return None
        rate = 1.0 - self.p.ema_decay
        if self.p.ema_warmup:  # 9 / (10 + n) is 1 - (1 + n) / (10 + n)
            num_steps = tf.cast(step, tf.float32) + self.p.slot_steps
            rate = tf.maximum(rate, 9.0 / (10.0 + num_steps))
        return rate

    def updates_rows(self) -> bool:
        """Returns whether weights in rows are updated correctly: this class's own `takes_rows`."""
        return vars(type(self)).get("takes_rows", False)

    def dense_reason(self, weight: Weight) -> str | None:
        """Returns why a step moves elements of a weight whose gradient is 0; None: it does not."""
        if self.keeps_averages:
            return "ema_decay and average_steps average every row"
        if any(self._decays(weight, name) for name in weight.names):
            return f"weight_decay={self.p.weight_decay} shrinks every row"
        if not vars(type(self)).get("skips_zeros", False):
            return f"{type(self).__name__} does not say skips_zeros = True, as Sgd and Adagrad do"
        return None

    def slots(self, weight: Weight) -> dict[str, Slot]:
        """Returns the slots of a weight, {name: Slot}."""
        del weight
        return {}

    def clip(
        self, weights: Mapping[str, Weight], gradients: Mapping[str, tf.Tensor], norm: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Clips gradients by all three limits: by value, then per weight, then by the global norm.

        Gradients become zeros if `norm` is above `discard_grad_norm`, as in Lingvo
        (`grad_norm_to_clip_to_zero`); momentum and weight decay still move the weights.

        Args:
            weights: {path of a tensor: its description}.
            gradients: {path of a tensor: float32 [*weight.shape], or in rows}, like the result.
            norm: float32 scalar, the gradients' global norm, which the caller reports anyway.
        """
        p, clipped = self.p, dict(gradients)
        if p.max_grad_value is not None:
            limit = p.max_grad_value
            clipped = {path: tf.clip_by_value(g, -limit, limit) for path, g in clipped.items()}
        if p.max_weight_grad_norm is not None:
            clipped = {
                path: _factor(weight_norm(weights[path], g), p.max_weight_grad_norm) * g
                for path, g in clipped.items()
            }
        if p.max_grad_norm is not None:
            changed = p.max_grad_value is not None or p.max_weight_grad_norm is not None
            factor = _factor(global_norm(weights, clipped) if changed else norm, p.max_grad_norm)
            clipped = {path: factor * g for path, g in clipped.items()}
        if p.discard_grad_norm is not None:
            is_large = norm > p.discard_grad_norm
            clipped = {path: tf.where(is_large, 0.0, g) for path, g in clipped.items()}
        return clipped

    def update(self, update: Update) -> UpdatedWeight:
        """Returns the weight and its slots after one step: the weight decays, then moves."""
        weight, value = update.weight, update.value
        decays = [self._decays(weight, name) for name in weight.names]
        value = select(weight, decays, value - update.rate * self.p.weight_decay * value, value)
        move = self.valid_move(update._replace(value=value))
        return UpdatedWeight(value - move.decrement, move.slots)

    def move(self, update: Update) -> Move:
        """Returns the decrement of a weight, after weight decay, and the weight's next slots."""
        raise NotImplementedError(f"{type(self).__name__} has no move")

    def valid_move(self, update: Update) -> Move:
        """Returns `move`; raises ParamError unless decrement and slots keep shape and dtype.

        Otherwise TensorFlow would broadcast the decrement, and slots would be lost. `move` gets the
        number of steps that the slots have seen: `slot_steps` more than the run has done.
        """
        if self.p.slot_steps:
            update = update._replace(step=update.step + self.p.slot_steps)
        move = self.move(update)
        where = f"{definition_line(type(self).move)}: {type(self).__name__}.move"
        if not isinstance(move, Move):
            raise ParamError(
                f"{where} returned {describe_kind(move)}: it returns Move(decrement, slots)"
            )
        if differ := sorted(move.slots.keys() ^ update.slots.keys()):
            has = "returned" if differ[0] in move.slots else "lacks"
            raise ParamError(f"{where} {has} the slot {differ[0]!r}: it returns those in `slots`")
        pairs = [("the decrement", move.decrement, update.value)]
        pairs += [(f"the slot {k!r}", new, update.slots[k]) for k, new in move.slots.items()]
        for what, new, old in pairs:
            value = tf.convert_to_tensor(new)
            if (value.dtype, value.shape) != (old.dtype, old.shape):
                raise ParamError(
                    f"{where} returned {describe_kind(value)}"
                    f" as {what} of {update.weight.path}, which is"
                    f" {describe_kind(old)}"
                )
        return move

    def trainable_layers(self, weight: Weight) -> tuple[bool, ...]:
        """Returns for each of `weight.names` whether an update can change that weight."""
        return (True,) * len(weight.names)

    def check_weights(self, weights: Iterable[Weight]) -> None:
        """Raises ParamError if patterns or slots of this optimizer do not fit a model's weights."""
        weights = list(weights)
        for weight in weights:
            slots = self.slots(weight)
            if not (isinstance(slots, dict) and all(isinstance(s, Slot) for s in slots.values())):
                where = f"{definition_line(type(self).slots)}: {type(self).__name__}.slots"
                raise ParamError(f"{where} returned {slots!r:.60}: it returns {{name: Slot}}")
            self.check_sparse(weight)
        check_used(self.p.no_decay, [name for weight in weights for name in weight.names])

    def check_sparse(self, weight: Weight) -> None:
        """Raises ParamError if a weight is a sparse table, but a step has to move all its rows."""
        if weight.sparse and (reason := self.dense_reason(weight)) is not None:
            raise ParamError(
                f"{weight.path} is a sparse table: a step updates only the rows that it looked up,"
                f" but {reason}: change the optimizer, or declare the table without"
                " sparse (EmbeddingTables.sparse_from=None)"
            )

    def _decays(self, weight: Weight, name: str) -> bool:
        """Returns whether the weight `name`, one of a tensor's weights, decays."""
        decays = self.p.weight_decay > 0 and weight.rank >= self.p.min_decay_rank
        return decays and not match_patterns(self.p.no_decay, name)


def global_norm(weights: Mapping[str, Weight], gradients: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns the L2 norm over all gradients, float32 [*weight.shape] each: a float32 scalar."""
    sums = (weight_sum(weights[path], g * g) for path, g in gradients.items())
    return tf.sqrt(tf.add_n([tf.reduce_sum(layers) for layers in sums]))


def weight_sum(weight: Weight, x: tf.Tensor) -> tf.Tensor:
    """Sums x, [*weight.shape] or in rows, over each weight: [*stack_shape, 1, ...]."""
    if (columns := weight.row_columns) is None:
        return tf.reduce_sum(x, axis=weight.axes, keepdims=True)
    own = tf.reduce_sum(columns.without_padding(x), axis=weight.axes, keepdims=True)
    return columns.total(own)


def weight_norm(weight: Weight, x: tf.Tensor) -> tf.Tensor:
    """Returns each weight's L2 norm, in the shape of `weight_sum`."""
    return tf.sqrt(weight_sum(weight, x * x))


def select(weight: Weight, chosen: Sequence[bool], new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """Returns `new` for the stacked weights that are `chosen` (per weight name), else `old`.

    Both are [*weight.stack_shape, ...], of any dtype.
    """
    if all(chosen):
        return new
    if not any(chosen):
        return old
    mask = tf.reshape(
        tf.constant(chosen), [*weight.stack_shape, *[1] * (len(new.shape) - weight.num_stacked)]
    )
    return tf.where(mask, new, old)


def _factor(norm: tf.Tensor, limit: float) -> tf.Tensor:
    """Returns the factor, at most 1, that scales a norm down to a limit."""
    return limit / tf.maximum(norm, limit)
