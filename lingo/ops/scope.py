"""Name scopes of handwritten gradients: those that TensorFlow gives its own gradients."""

from __future__ import annotations

from lingo.config.lazy import tf


def gradient_scope() -> str:
    """Returns the name scope for the gradient of the current operations: `gradient_tape/...`.

    Without it the operations of a custom gradient have no scope, and profiles and compiled programs
    do not show which layer they belong to.
    """
    here = tf.get_current_name_scope()
    return f"gradient_tape/{here}/" if here else "gradient_tape/"
