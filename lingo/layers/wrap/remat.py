"""Rematerialization: gradients recompute the activations inside a layer; none are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lingo.config.lazy import tf
from lingo.layers import context
from lingo.layers.wrap.wrapper import Wrapper
from lingo.ops.device import on_device
from lingo.ops.scope import gradient_scope


class Remat(Wrapper):
    """Stores only the inputs of a layer for the gradient (Chen et al. 2016; GPipe, sec. 2.3).

    It costs one more forward pass of the layer; results, gradients, paths and random numbers are
    the same. Under XLA only a scan keeps the second pass separate from the first.
    """

    def call_wrapped(self, method: str, *args: Any, **inputs: Any) -> Any:
        call = context.current()
        if call.caches or call.decode_length is not None:  # decoding needs no gradient
            return getattr(self.layer, method)(*args, **inputs)

        def body(args: Any, inputs: Any, tensors: Any) -> Any:
            inner = call.derive(**tensors)
            with context.enter_call(inner):
                y = getattr(self.layer, method)(*args, **inputs)
            return y, inner.sides.additive_fields() | inner.sides.per_layer_fields()

        y, sides = recompute(body, list(args), inputs, call.of([self.layer]))
        call.sides.add(sides)
        return y


def recompute(body: Callable[..., Any], *args: Any, device: str | None = None) -> Any:
    """Calls a function whose gradient recomputes its intermediate values.

    All differentiable tensors must be in `args`: gradients do not flow into captured tensors. The
    second pass waits for the incoming gradients, so that graph optimizations cannot merge it with
    the first.

    Args:
        body: a function of `args`; its results are float tensors of any shapes, in any structure.
        *args: tensors of any shape and type, or structures of tensors and None.
        device: device of the function and its gradient; None: TensorFlow chooses.
    """
    flat = tf.nest.flatten(args)
    tensors = [a for a in flat if a is not None]
    structure: list[Any] = []

    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        rest = iter(tensors)
        filled = [None if a is None else next(rest) for a in flat]
        results = body(*tf.nest.pack_sequence_as(args, filled))
        structure[:] = [results]
        return tf.nest.flatten(results)

    @tf.custom_gradient
    def forward(*tensors: tf.Tensor) -> Any:
        scope = gradient_scope()

        def backward(*gradients: tf.Tensor) -> Any:
            with on_device(device), tf.name_scope(scope):
                with tf.control_dependencies(gradients):
                    copies = [tf.identity(t) for t in tensors]
                with tf.GradientTape() as tape:
                    tape.watch([c for c in copies if c.dtype.is_floating])
                    results = run(*copies)
                return tape.gradient(results, copies, output_gradients=list(gradients))

        return run(*tensors), backward

    with on_device(device):
        results = forward(*tensors)
    return tf.nest.pack_sequence_as(structure[0], results)
