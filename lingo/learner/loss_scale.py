"""Dynamic loss scaling: gradients that float16 would round to 0 stay in its range.

A step multiplies its loss by a scale, and divides the gradients of the weights, which are float32,
by it. A step whose gradients are not finite only halves the scale. GROWTH_STEPS finite steps in a
row double it (Micikevicius et al. 2018, sec. 3.2). Keras's `LossScaleOptimizer` has the same start
and growth, but not the limits: here the scale is at least 1, and finite.

The scale is a power of two, so that it changes no bit of a gradient where float16 neither overflows
nor underflows.
"""

from __future__ import annotations

from collections.abc import Mapping

from lingo.config.lazy import tf
from lingo.layers.initial import ZEROS, Constant
from lingo.layers.tree import ParamSpec
from lingo.learner.task import Task

START = 2.0**15
GROWTH_STEPS = 2000

SCALE = "loss_scale/scale"
"""Program path of the scale, a float32 scalar."""

STEPS = "loss_scale/finite_steps"
"""Program path of the number of finite steps in a row since the scale last changed, float32."""


def states(task: Task) -> dict[str, ParamSpec]:
    """Returns path -> declaration of the scale's states; {} if no layer computes in float16."""
    if all(layer.p.dtype != "float16" for layer in task.tree()):
        return {}
    start = Constant.params(value=START).build()
    return {
        path: ParamSpec(path, (), (), "float32", init, 1)
        for path, init in ((SCALE, start), (STEPS, ZEROS))
    }


def next_states(state: Mapping[str, tf.Tensor], is_finite: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the states after a step; `is_finite`, bool scalar: its gradients were finite."""
    scale, steps = state[SCALE], state[STEPS] + 1.0
    is_due = steps >= GROWTH_STEPS
    larger = tf.where(is_due & tf.math.is_finite(2.0 * scale), 2.0 * scale, scale)
    return {
        SCALE: tf.where(is_finite, larger, tf.maximum(0.5 * scale, 1.0)),
        STEPS: tf.where(is_finite & tf.logical_not(is_due), steps, 0.0),
    }
