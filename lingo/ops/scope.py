"""Name scopes for custom gradients, as TensorFlow's own gradients have; contexts for devices."""

from __future__ import annotations

import contextlib
from typing import Any

from lingo.config.lazy import tf


def gradient_scope() -> str:
    """Returns the name scope for the gradient of the current operations: `gradient_tape/...`.

    Without this scope, the operations of a custom gradient have no scope, and profiles and compiled
    programs do not show which layer they belong to.
    """
    here = tf.get_current_name_scope()
    return f"gradient_tape/{here}/" if here else "gradient_tape/"


def one_scope(name: str) -> contextlib.AbstractContextManager[Any]:
    """Opens a name scope in the current one, the same one each time: no `name_1`."""
    here = tf.get_current_name_scope()
    if f"/{here}".endswith(f"/{name}"):
        return contextlib.nullcontext()
    return tf.name_scope(f"{here}/{name}/" if here else f"{name}/")


def on_device(device: str | None) -> contextlib.AbstractContextManager[Any]:
    """Places operations created in this context on a device; None changes nothing."""
    # tf.device(None) would undo the device that a replica has set
    return contextlib.nullcontext() if device is None else tf.device(device)


def on_device_of_inputs(otherwise: str) -> contextlib.AbstractContextManager[Any]:
    """Places each operation created in this context on the device of its largest input.

    An operation that already has a device keeps it. An operation whose inputs have no known device
    gets no device. The context works only while a graph is built.

    Args:
        otherwise: device of an operation whose largest inputs are on several devices, such as a sum
            of scalars.
    """

    def of_inputs(op: tf.Operation) -> str:
        known = [tensor for tensor in op.inputs if tensor.op.device]
        if op.device or not known:
            return op.device
        sizes = [tensor.shape.num_elements() or 0 for tensor in known]
        largest = max(sizes)
        devices = {t.op.device for t, size in zip(known, sizes, strict=True) if size == largest}
        return devices.pop() if len(devices) == 1 else otherwise

    return tf.compat.v1.get_default_graph().device(of_inputs)
