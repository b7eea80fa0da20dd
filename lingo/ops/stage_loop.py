"""Pipelines in a program: stages in a loop over micro-batches, or all at once in a shift register.

`run_stages` computes micro-batches one after the other, and so does its gradient:

    for m in 0, ..., M - 1:             # as many at once as there are stages
        for k in 0, ..., K - 1:         # on the device of stage k
            wait until stage k is done with micro-batch m - 1
            inputs[k][m] = x
            x, sums = stage k of x
            total[k] += sums
        y[m] = x

    for m in M - 1, ..., 0:             # the gradient
        for k in K - 1, ..., 0:         # on the device of stage k
            wait until stage k is done with micro-batch m + 1
            dx, dweights = gradient of stage k, computed again from inputs[k][m]
            total[k] += dweights

A `tf.while_loop` starts an iteration before earlier ones have ended, and each device runs the ready
operations (Yu et al. 2018). So the stages of different iterations compute in parallel, in GPipe's
order, though the program has one copy of each stage, for any number of micro-batches.

TensorFlow puts all tensors that a loop passes to the next iteration on one device. So if stages
have devices, the loop is unrolled. Each stage then is two functions, which the program calls M
times.

`shift_register` computes all stages at once, each on its current micro-batch:

    tick t:  every micro-batch moves to the next stage, and the next one enters the first stage
             y[k] = stage k of x[k]          # all k in parallel
             the last stage's result is done, or waits to enter the first stage again

Micro-batch m enters its repeat r at tick r * M + m, and reaches the next stage one tick later. The
program has one copy of the computation for any number of micro-batches. If a mesh splits the axis
of stages, a shift is a transfer to the next device (Xu et al. 2021, sec. 3.3).

Axes: K stages, M micro-batches, R repeats, N = M * R + K - 1 ticks, B examples of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.ops.scan import output_specs, scan
from lingo.ops.scope import gradient_scope, on_device
from lingo.ops.shape import expand_like

Stages = Callable[[Any, Any, Any], tuple[Any, Any]]
"""A function that computes one tick of all stages: (int32 [K] micro-batch indices, [K, B, ...] x,
[K, B, ...] per-example inputs) -> (y, of the shape and type of x; other tensors).

Index r * M + m is micro-batch m of repeat r. An index below 0, or of M * R or more, is not a
micro-batch, and its result is ignored."""


class Stage(NamedTuple):
    """A stage of a pipeline."""

    # (weights, x, inputs) -> (y, sums); structures of tensors, in sums of float types
    compute: Callable[[Any, Any, Any], tuple[Any, Any]]
    weights: Any  # structure of float tensors
    device: str | None = None  # None: TensorFlow chooses


def run_stages(stages: Sequence[Stage], x: Any, inputs: Any) -> tuple[Any, list[Any]]:
    """Passes micro-batches through stages.

    The gradient keeps the inputs of stages and computes the rest again (Huang et al. 2019, sec.
    2.3). It flows to weights and to float tensors of `x`, not to other tensors that stages use. It
    is None for weights that a stage does not use.

    Raises ValueError if only some stages have devices.

    Args:
        stages: K stages; each takes the y of the stage before it.
        x: input of the first stage, a structure of [M, ...] tensors.
        inputs: further inputs of every stage, a structure of [M, ...] tensors.

    Returns:
        The y of the last stage, [M, ...], and for each stage its sums over micro-batches.

    >>> double = Stage(lambda w, x, _: (w * x, {"total": tf.reduce_sum(x)}), tf.constant(2.0))
    >>> y, sums = run_stages([double, double], tf.constant([[1.0], [2.0], [3.0]]), ())
    >>> y.numpy().ravel(), [float(s["total"]) for s in sums]
    (array([ 4.,  8., 12.], dtype=float32), [6.0, 12.0])
    """
    if len({stage.device is None for stage in stages}) > 1:
        raise ValueError(
            "some stages have a device and some have none: give all stages one, or none"
        )
    x = tf.nest.map_structure(tf.convert_to_tensor, x)
    loop = _Loop(stages, x, inputs)
    # If all weights were arguments of one custom gradient, they would be copied to one device. So a
    # handle, 0.0, stands for the weights of each stage. The tape calls `backward` before the
    # gradients of handles, since the results depend on the handles.
    weight_gradients: list[Any] = [()] * len(stages)
    handles = [_weights_handle(stage, weight_gradients, k) for k, stage in enumerate(stages)]

    @tf.custom_gradient
    def forward(*tensors: tf.Tensor) -> Any:
        scope, first = gradient_scope(), tf.nest.pack_sequence_as(x, tensors[: -len(stages)])
        y, sums, arrays = loop.forward(first)

        def backward(*gradients: tf.Tensor) -> Any:
            dy, dsums = tf.nest.pack_sequence_as((y, sums), gradients)
            with tf.name_scope(scope):
                dx, weight_gradients[:] = loop.backward(first, arrays, dy, dsums)
            return [*dx, *[tf.zeros([])] * len(stages)]

        return tf.nest.flatten((y, sums)), backward

    results = forward(*tf.nest.flatten(x), *handles)
    return tf.nest.pack_sequence_as((loop.specs[-1], loop.sums), results)


def _weights_handle(stage: Stage, weight_gradients: Sequence[Any], k: int) -> tf.Tensor:
    """Returns 0.0, whose gradient with respect to stage k's weights is `weight_gradients[k]`."""

    @tf.custom_gradient
    def handle(*weights: tf.Tensor) -> Any:
        return tf.zeros([]), lambda _: weight_gradients[k]

    with on_device(stage.device):
        weights = tf.nest.flatten(stage.weights)
        return handle(*weights) if weights else tf.zeros([])


class _Loop:
    """The loop over micro-batches, and its gradient."""

    def __init__(self, stages: Sequence[Stage], x: Any, inputs: Any) -> None:
        self.stages, self.inputs = stages, inputs
        self.num: Any = tf.nest.flatten(x)[0].shape[0]  # M
        self.devices = [stage.device for stage in stages]
        first, more = (
            tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape[1:], v.dtype), v)
            for v in (x, inputs)
        )
        self.specs: list[Any] = [first]  # specs of x and of each stage's y, K + 1
        self.sums: list[Any] = []  # specs of the sums of each stage
        for compute, weights, _ in stages:
            y, sums = output_specs(compute, weights, self.specs[-1], more)
            self.specs.append(y)
            self.sums.append(sums)

    def forward(self, x: Any) -> tuple[Any, list[Any], list[Any]]:
        """Returns y, [M, ...], the sums, and arrays of the inputs of all stages but the first."""
        takers = [*self.devices[1:], self.devices[-1]]  # the last device holds the result
        arrays = [self._arrays(*pair) for pair in zip(self.specs[1:], takers, strict=True)]
        sums = [_zeros(*pair) for pair in zip(self.sums, self.devices, strict=True)]
        steps = [self._function(stage, partial(_compute, stage.compute)) for stage in self.stages]

        def iterate(m: Any, counts: Any, arrays: Any, sums: Any) -> Any:
            counts, arrays, sums, y = [*counts], [*arrays], [*sums], None
            for k, stage in enumerate(self.stages):
                with on_device(stage.device):
                    i = counts[k]
                    inputs = _read(self.inputs, i)
                    y, sums[k], counts[k] = steps[k](
                        i, sums[k], stage.weights, y if k else _read(x, i), inputs
                    )
                with on_device(takers[k]):
                    arrays[k] = _write(arrays[k], i, y)
            return m + 1, counts, arrays, sums

        arrays, sums = self._repeat(iterate, 0, arrays, sums)
        with on_device(takers[-1]):
            return tf.nest.map_structure(lambda a: a.stack(), arrays[-1]), sums, arrays[:-1]

    def backward(
        self, x: Any, arrays: Sequence[Any], dy: Any, dsums: Sequence[Any]
    ) -> tuple[list[Any], list[list[Any]]]:
        """Returns the gradients of the flat x and of each stage's weights.

        The gradients of x are [M, ...], or None for integers. `dy`, [M, ...], and `dsums` are the
        gradients of the y and sums that `forward` returns.
        """
        weights = [tf.nest.flatten(stage.weights) for stage in self.stages]
        totals = [_zeros(*pair) for pair in zip(weights, self.devices, strict=True)]
        used: list[set[int]] = [set() for _ in self.stages]
        pairs = [*zip(self.stages, used, strict=True)]
        steps = [self._function(s, partial(_differentiate, s.compute, u)) for s, u in pairs]
        dx = self._arrays(_floats(self.specs[0]), self.devices[0])
        dy = _floats(dy, self.specs[-1])

        def iterate(m: Any, counts: Any, totals: Any, dx: Any) -> Any:
            counts, totals, first = [*counts], [*totals], counts[0]
            with on_device(self.devices[-1]):
                gradients = _read(dy, counts[-1])
            for k, stage in reversed([*enumerate(self.stages)]):
                with on_device(stage.device):
                    i = counts[k]
                    taken = _take(arrays[k - 1], i) if k else _read(x, i)
                    inputs = _read(self.inputs, i)
                    gradients, totals[k], counts[k] = steps[k](
                        i, totals[k], stage.weights, taken, inputs, gradients, dsums[k]
                    )
            with on_device(self.devices[0]):
                return m + 1, counts, totals, _write(dx, first, gradients)

        totals, dx = self._repeat(iterate, self.num - 1, totals, dx)
        with on_device(self.devices[0]):
            stacked = iter([a.stack() for a in dx])
        of_x = [next(stacked) if v.dtype.is_floating else None for v in tf.nest.flatten(x)]
        of_weights = [
            [total if j in used[k] else None for j, total in enumerate(totals[k])]
            for k in range(len(totals))
        ]
        return of_x, of_weights

    def _function(self, stage: Stage, step: Callable[..., Any]) -> Callable[..., Any]:
        """If the stage has a device, makes a step a function that the program contains once."""
        if stage.device is None or tf.executing_eagerly():
            return step
        # if it were inlined, the running program would contain a copy per call
        return tf.function(step, autograph=False, experimental_attributes={"_noinline": True})

    def _repeat(self, iterate: Callable[..., Any], first: int, *carry: Any) -> Any:
        """Runs the loop; each stage counts micro-batches from `first`, and waits for its count."""
        carry = ([_constant(first, device) for device in self.devices], *carry)
        if self.devices[0] is None:
            _, _, *carry = tf.while_loop(
                lambda m, *_: m < self.num,
                iterate,
                (tf.constant(0), *carry),
                parallel_iterations=len(self.stages),
            )
            return carry
        # unrolled, because TensorFlow places all tensors that a loop carries on one device
        for _ in range(self.num):
            _, *carry = iterate(0, *carry)
        return carry[1:]

    def _arrays(self, specs: Any, device: str | None) -> Any:
        """Returns empty arrays of M tensors on a device."""
        options = {"size": self.num, "clear_after_read": False}
        with on_device(device):
            return tf.nest.map_structure(
                lambda s: tf.TensorArray(s.dtype, element_shape=s.shape, **options), specs
            )


def _compute(
    compute: Any, i: tf.Tensor, total: Any, weights: Any, x: Any, inputs: Any
) -> tuple[Any, Any, tf.Tensor]:
    """Computes a stage; returns y, `total` plus the stage's sums, and the next count.

    It waits for the count `i`, which the previous micro-batch returns when it is done.
    """
    with tf.control_dependencies([i]):
        x = tf.nest.map_structure(tf.identity, x)
    y, sums = compute(weights, x, inputs)
    total = tf.nest.map_structure(tf.add, total, sums)
    with tf.control_dependencies(tf.nest.flatten((y, total))):
        return y, total, i + 1


def _differentiate(
    compute: Any,
    used: set[int],
    i: tf.Tensor,
    total: Sequence[Any],
    weights: Any,
    x: Any,
    inputs: Any,
    dy: Sequence[Any],
    dsums: Any,
) -> tuple[list[Any], list[Any], tf.Tensor]:
    """Computes a stage's gradient with respect to its float x and its flat weights.

    Returns three values: the gradient of x, with zeros for tensors that nothing uses; `total` plus
    the gradient of the weights; and the next count. Adds the indices of the weights that the stage
    uses to `used`. Waits for `dy`, the gradients of y's float tensors, before it computes the stage
    again, because recomputed tensors take memory.
    """
    with tf.control_dependencies([i, *dy]):
        weights, x = tf.nest.map_structure(tf.identity, (weights, x))
    of_x, of_weights = _floats(x), tf.nest.flatten(weights)
    with tf.GradientTape() as tape:
        tape.watch([*of_x, *of_weights])
        y, sums = compute(weights, x, inputs)
    targets = [*_floats(y), *tf.nest.flatten(sums)]
    upstream = [*dy, *tf.nest.flatten(dsums)]
    gradients = tape.gradient(targets, [*of_x, *of_weights], output_gradients=upstream)
    gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
    dx, dw = gradients[: len(of_x)], gradients[len(of_x) :]
    dx = [tf.zeros_like(v) if g is None else g for v, g in zip(of_x, dx, strict=True)]
    used.update(j for j, g in enumerate(dw) if g is not None)
    total = [t if g is None else t + g for t, g in zip(total, dw, strict=True)]
    with tf.control_dependencies([*dx, *total]):
        return dx, total, i - 1


def _read(values: Any, i: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda v: tf.gather(v, i), values)


def _take(arrays: Any, i: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda a: a.read(i), arrays)


def _write(arrays: Any, i: tf.Tensor, values: Any) -> Any:
    return tf.nest.map_structure(lambda a, v: a.write(i, v), arrays, values)


def _floats(values: Any, specs: Any = None) -> list[Any]:
    """Returns the flat values of float types; `specs`, if given, state the types."""
    flat = tf.nest.flatten(values)
    pairs = zip(flat, flat if specs is None else tf.nest.flatten(specs), strict=True)
    return [value for value, spec in pairs if spec.dtype.is_floating]


def _zeros(specs: Any, device: str | None) -> Any:
    with on_device(device):
        return tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)


def _constant(value: int, device: str | None) -> tf.Tensor:
    with on_device(device):
        return tf.constant(value)


# ---- all stages at once --------------------------------------------------------------------------


def shift_register(
    stages: Stages,
    x: tf.Tensor,
    per_example_inputs: Any,
    *,
    num_stages: int,
    num_repeats: int,
    with_sharding: Callable[[Any, str | None], Any],
) -> tuple[tf.Tensor, Any]:
    """Passes micro-batches through the stages of a pipeline.

    Args:
        stages: computes one tick of all stages.
        x: [M, B, ...], any float type, the input of the first stage; M >= K if R > 1.
        per_example_inputs: structure of [M, B, ...] tensors; each moves through the stages
            unchanged, with its micro-batch.
        num_stages: K.
        num_repeats: R, how often a micro-batch passes all stages.
        with_sharding: sets the sharding of tensors by the logical name of their first axis: "stage"
            for [K, B, ...], None for a first axis of any other size.

    Returns:
        The output of the last stage in the last repeat, [M, B, ...] of the type of `x`; and the
        other tensors of all ticks, [N, ...].

    >>> def stages(index, x, inputs):  # each of two stages adds one
    ...     return x + 1.0, ()
    >>> x = tf.constant([[1.0], [2.0], [3.0]])  # three micro-batches of one example
    >>> shift_register(
    ...     stages, x, (), num_stages=2, num_repeats=1, with_sharding=lambda x, axis: x
    ... )[0].numpy().ravel()
    array([3., 4., 5.], dtype=float32)
    """
    num_micro_batches: Any = x.shape[0]
    num_ticks = num_micro_batches * num_repeats + num_stages - 1
    inputs = (x, per_example_inputs)
    entering = tf.nest.map_structure(lambda v: _repeat_microbatches(v, num_ticks), inputs)
    entering = with_sharding(entering, None)
    # Stages that no micro-batch has reached yet compute, too. They get real examples, so that they
    # compute no nan.
    register = tf.nest.map_structure(lambda v: tf.repeat(v[:1], num_stages, axis=0), inputs)
    register = with_sharding(register, "stage")
    # outputs of the last stage wait here for their next repeat
    waiting = x[num_stages - 1 :] if num_repeats > 1 else ()

    def tick(t: tf.Tensor, carry: Any, entering: Any) -> tuple[Any, Any]:
        register, waiting = carry
        if num_repeats > 1:
            x = tf.where(t < num_micro_batches, entering[0], waiting[0])
            entering = x, entering[1]
        x, per_example = with_sharding(tf.nest.map_structure(_shift, register, entering), "stage")
        y, others = stages(t - tf.range(num_stages), x, per_example)
        y = with_sharding(y, "stage")
        last = with_sharding(y[-1:], None)
        if num_repeats > 1:
            waiting = tf.concat([waiting[1:], last], axis=0)
        return ((y, per_example), waiting), (last[0], others)

    _, (outputs, others) = scan(tick, (register, waiting), entering, num_ticks)
    return outputs[num_ticks - num_micro_batches :], others


def _shift(register: tf.Tensor, entering: tf.Tensor) -> tf.Tensor:
    """Returns a register, [K, ...], shifted by one stage, with `entering`, [1, ...], in front.

    XLA's partitioner turns only this formulation into a transfer to the next device.
    """
    moved = tf.pad(register, [[1, 0], *[[0, 0]] * (len(register.shape) - 1)])[:-1]
    is_first = tf.equal(tf.range(moved.shape[0]), 0)
    return tf.where(expand_like(is_first, moved), entering, moved)


def _repeat_microbatches(value: tf.Tensor, num_ticks: int) -> tf.Tensor:
    """Repeats micro-batches, [M, ...], in order until there are as many as ticks: [N, ...]."""
    num: Any = value.shape[0]
    return tf.concat([value] * (num_ticks // num) + [value[: num_ticks % num]], axis=0)
