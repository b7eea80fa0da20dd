"""Stages that compute micro-batches one after the other in a loop, and the gradient of that loop.

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

A `tf.while_loop` starts an iteration before earlier ones have ended, and each device does what is
ready (Yu et al. 2018). So the stages of different iterations compute in parallel, in the order of
GPipe, though the program has one copy of each stage, for any number of micro-batches.

Axes: M micro-batches, K stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.ops.device import on_device
from lingo.ops.scan import output_specs
from lingo.ops.scope import gradient_scope


class Stage(NamedTuple):
    """A stage of a pipeline."""

    # (weights, x, inputs) -> (y, sums); structures of tensors, those of sums are of float types
    compute: Callable[[Any, Any, Any], tuple[Any, Any]]
    weights: Any  # structure of float tensors
    device: str | None = None  # None: TensorFlow chooses


def run_stages(stages: Sequence[Stage], x: Any, inputs: Any) -> tuple[Any, list[Any]]:
    """Passes micro-batches through stages.

    The gradient keeps what stages take, and computes the rest again (Huang et al. 2019, sec. 2.3).
    It flows to weights and to float tensors of `x`, not to others that stages use. It is None for
    weights that a stage does not use.

    Args:
        stages: K of them; each takes what the one before returns.
        x: what the first stage takes, a structure of [M, ...] tensors.
        inputs: more that every stage takes, a structure of [M, ...] tensors.

    Returns:
        What the last stage returns, [M, ...], and for each stage its sums over micro-batches.

    >>> double = Stage(lambda w, x, _: (w * x, {"total": tf.reduce_sum(x)}), tf.constant(2.0))
    >>> y, sums = run_stages([double, double], tf.constant([[1.0], [2.0], [3.0]]), ())
    >>> y.numpy().ravel(), [float(s["total"]) for s in sums]
    (array([ 4.,  8., 12.], dtype=float32), [6.0, 12.0])
    """
    x = tf.nest.map_structure(tf.convert_to_tensor, x)
    loop = _Loop(stages, x, inputs)
    # As arguments of one custom gradient, all weights would be copied to one device. So each stage
    # has a number instead: its gradient is that of the weights.
    found: list[Any] = [()] * len(stages)
    numbers = [_number(stage, found, k) for k, stage in enumerate(stages)]

    @tf.custom_gradient
    def forward(*tensors: tf.Tensor) -> Any:
        scope, first = gradient_scope(), tf.nest.pack_sequence_as(x, tensors[: -len(stages)])
        y, sums, arrays = loop.forward(first)

        def backward(*gradients: tf.Tensor) -> Any:
            dy, dsums = tf.nest.pack_sequence_as((y, sums), gradients)
            with tf.name_scope(scope):
                dx, found[:] = loop.backward(first, arrays, dy, dsums)
            return [*dx, *[tf.zeros([])] * len(stages)]

        return tf.nest.flatten((y, sums)), backward

    results = forward(*tf.nest.flatten(x), *numbers)
    return tf.nest.pack_sequence_as((loop.specs[-1], loop.sums), results)


def _number(stage: Stage, found: Sequence[Any], k: int) -> tf.Tensor:
    """Returns 0.0; its gradient by the weights of stage k is `found[k]`."""

    @tf.custom_gradient
    def number(*weights: tf.Tensor) -> Any:
        return tf.zeros([]), lambda _: found[k]

    with on_device(stage.device):
        weights = tf.nest.flatten(stage.weights)
        return number(*weights) if weights else tf.zeros([])


class _Loop:
    """The loop and its gradient."""

    def __init__(self, stages: Sequence[Stage], x: Any, inputs: Any) -> None:
        self.stages, self.inputs = stages, inputs
        self.num: Any = tf.nest.flatten(x)[0].shape[0]  # M
        self.devices = [stage.device for stage in stages]
        first, more = (
            tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape[1:], v.dtype), v)
            for v in (x, inputs)
        )
        self.specs: list[Any] = [first]  # of what passes between stages, K + 1
        self.sums: list[Any] = []  # specs of the sums of each stage
        for compute, weights, _ in stages:
            y, sums = output_specs(compute, weights, self.specs[-1], more)
            self.specs.append(y)
            self.sums.append(sums)

    def forward(self, x: Any) -> tuple[Any, list[Any], list[Any]]:
        """Returns y, [M, ...], the sums, and arrays of what each stage but the first takes."""
        takers = [*self.devices[1:], self.devices[-1]]  # the last has the result
        arrays = [self._arrays(*pair) for pair in zip(self.specs[1:], takers, strict=True)]
        sums = [_zeros(*pair) for pair in zip(self.sums, self.devices, strict=True)]

        def iterate(m: Any, counts: Any, arrays: Any, sums: Any) -> Any:
            counts, arrays, sums, y = [*counts], [*arrays], [*sums], None
            for k, (compute, weights, device) in enumerate(self.stages):
                with on_device(device):
                    i = counts[k]
                    with tf.control_dependencies([i]):
                        taken = tf.nest.map_structure(tf.identity, y) if k else _read(x, i)
                    y, more = compute(weights, taken, _read(self.inputs, i))
                    sums[k] = tf.nest.map_structure(tf.add, sums[k], more)
                    with tf.control_dependencies(tf.nest.flatten((y, sums[k]))):
                        counts[k] = i + 1
                with on_device(takers[k]):
                    arrays[k] = tf.nest.map_structure(lambda a, v, i=i: a.write(i, v), arrays[k], y)
            return m + 1, counts, arrays, sums

        _, _, arrays, sums = self._repeat(iterate, 0, arrays, sums)
        with on_device(takers[-1]):
            return tf.nest.map_structure(lambda a: a.stack(), arrays[-1]), sums, arrays[:-1]

    def backward(
        self, x: Any, arrays: Sequence[Any], dy: Any, dsums: Sequence[Any]
    ) -> tuple[list[Any], list[list[Any]]]:
        """Returns gradients: of flat x, [M, ...], None for integers; of the weights of each stage.

        `dy`, [M, ...], and `dsums` are those of what `forward` returns.
        """
        weights = [tf.nest.flatten(stage.weights) for stage in self.stages]
        used: list[list[bool]] = [[]] * len(self.stages)
        totals = [_zeros(*pair) for pair in zip(weights, self.devices, strict=True)]
        dx = self._arrays(_floats(self.specs[0]), self.devices[0])
        dy = _floats(dy, self.specs[-1])

        def iterate(m: Any, counts: Any, totals: Any, dx: Any) -> Any:
            counts, totals = [*counts], [*totals]
            with on_device(self.devices[-1]):
                gradients = _read(dy, counts[-1])
            for k, stage in reversed([*enumerate(self.stages)]):
                with on_device(stage.device):
                    with tf.control_dependencies(gradients):  # not earlier: it takes memory
                        i = tf.identity(counts[k])
                    taken = (
                        tf.nest.map_structure(lambda a, i=i: a.read(i), arrays[k - 1])
                        if k
                        else _read(x, i)
                    )
                    results = _gradient(stage, taken, _read(self.inputs, i), gradients, dsums[k])
                    gradients, of_weights = results
                    used[k] = [g is not None for g in of_weights]
                    totals[k] = [
                        total if g is None else total + g
                        for total, g in zip(totals[k], of_weights, strict=True)
                    ]
                    with tf.control_dependencies([*gradients, *totals[k]]):
                        counts[k] = i - 1
            with on_device(self.devices[0]):
                dx = [a.write(i, g) for a, g in zip(dx, gradients, strict=True)]
            return m + 1, counts, totals, dx

        _, _, totals, dx = self._repeat(iterate, self.num - 1, totals, dx)
        with on_device(self.devices[0]):
            stacked = iter([a.stack() for a in dx])
        of_x = [next(stacked) if s.dtype.is_floating else None for s in tf.nest.flatten(x)]
        of_weights = [
            [g if is_used else None for g, is_used in zip(*pair, strict=True)]
            for pair in zip(totals, used, strict=True)
        ]
        return of_x, of_weights

    def _repeat(self, iterate: Callable[..., Any], first: int, *carry: Any) -> Any:
        """Runs the loop; each stage counts its micro-batches, from `first`, and waits for that."""
        counts = [_constant(first, device) for device in self.devices]
        return tf.while_loop(
            lambda m, *_: m < self.num,
            iterate,
            (tf.constant(0), counts, *carry),
            parallel_iterations=len(self.stages),
        )

    def _arrays(self, specs: Any, device: str | None) -> Any:
        """Returns empty arrays of M tensors on a device."""
        with on_device(device):
            return tf.nest.map_structure(
                lambda s: tf.TensorArray(
                    s.dtype, self.num, element_shape=s.shape, clear_after_read=False
                ),
                specs,
            )


def _gradient(
    stage: Stage, x: Any, inputs: Any, gradients: Sequence[Any], dsums: Any
) -> tuple[list[Any], list[Any]]:
    """Returns the gradients of a stage for the float tensors of x and for weights.

    `gradients` are those of the float tensors of y. What does not use x has zeros for it, what does
    not use a weight None.
    """
    weights = tf.nest.map_structure(tf.identity, stage.weights)
    with tf.GradientTape() as tape:
        sources = [*_floats(x), *tf.nest.flatten(weights)]
        tape.watch(sources)
        y, sums = stage.compute(weights, x, inputs)
    targets = [*_floats(y), *tf.nest.flatten(sums)]
    found = tape.gradient(targets, sources, output_gradients=[*gradients, *tf.nest.flatten(dsums)])
    found = [g if g is None else tf.convert_to_tensor(g) for g in found]
    num = len(_floats(x))
    of_x = [tf.zeros_like(v) if g is None else g for v, g in zip(_floats(x), found, strict=False)]
    return of_x, found[num:]


def _read(values: Any, i: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda v: tf.gather(v, i), values)


def _floats(values: Any, specs: Any = None) -> list[Any]:
    """Returns those of flat values that are of float types, or whose specs are."""
    flat = tf.nest.flatten(values)
    pairs = zip(flat, flat if specs is None else tf.nest.flatten(specs), strict=True)
    return [value for value, spec in pairs if spec.dtype.is_floating]


def _zeros(specs: Any, device: str | None) -> Any:
    with on_device(device):
        return tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)


def _constant(value: int, device: str | None) -> tf.Tensor:
    with on_device(device):
        return tf.constant(value)
