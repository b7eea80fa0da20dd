"""Which device an operation stands on."""

from __future__ import annotations

import contextlib
from typing import Any

from lingo.config.lazy import tf


def on_device(device: str | None) -> contextlib.AbstractContextManager[Any]:
    """Puts the operations made inside on a device; None: wherever they would be without."""
    # tf.device(None) would take back what a replica has said
    return contextlib.nullcontext() if device is None else tf.device(device)


def beside_inputs(otherwise: str) -> contextlib.AbstractContextManager[Any]:
    """Puts each operation made inside, if nothing else does, where its largest input stands.

    An operation whose inputs are of no known device stays without one, too. Only in a graph.

    Args:
        otherwise: device of an operation whose largest inputs stand on several: sums of numbers.
    """

    def of_inputs(op: tf.Operation) -> str:
        known = [tensor for tensor in op.inputs if tensor.op.device]
        if op.device or not known:
            return op.device
        sizes = [tensor.shape.num_elements() or 0 for tensor in known]
        largest = max(sizes)
        found = {t.op.device for t, size in zip(known, sizes, strict=True) if size == largest}
        return found.pop() if len(found) == 1 else otherwise

    return tf.compat.v1.get_default_graph().device(of_inputs)
