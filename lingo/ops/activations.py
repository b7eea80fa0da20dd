"""Activation functions, by the names that parameters give them."""

from __future__ import annotations

from typing import Literal

from lingo.lazy import tf

Activation = Literal["relu", "gelu", "silu"]
"""`gelu` is x times the normal distribution function, without the tanh approximation (Hendrycks and
Gimpel 2016); `silu` is x times its sigmoid, also called swish (Elfwing et al. 2017)."""


def activate(x: tf.Tensor, activation: Activation) -> tf.Tensor:
    """Applies an activation function to every element.

    Args:
        x: any shape, any float type.
        activation: which function.

    Returns:
        The shape and type of `x`.
    """
    return {"relu": tf.nn.relu, "gelu": tf.nn.gelu, "silu": tf.nn.silu}[activation](x)
