"""Names of operations: a gradient written by hand stands where TensorFlow puts its own."""

from __future__ import annotations

from lingo.config.lazy import tf


def gradient_scope() -> str:
    """Returns the name scope for the gradient of what is computed now: `gradient_tape/...`.

    Operations that a custom gradient makes would have no scope, and nobody could tell in a profile
    or a compiled program which layer they are of.
    """
    here = tf.get_current_name_scope()
    return f"gradient_tape/{here}/" if here else "gradient_tape/"
