"""Activation functions, chosen by name."""

from __future__ import annotations

from typing import Literal

from lingo.config.lazy import tf

Activation = Literal[
    "identity", "relu", "squared_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"
]
"""`squared_relu` is max(x, 0)^2 (So et al. 2021); `gelu` is x times the standard normal's
cumulative distribution function, and `gelu_tanh` approximates it with a tanh (Hendrycks and Gimpel
2016); `silu` is x times its sigmoid, also called swish (Elfwing et al. 2017)."""


def activate(x: tf.Tensor, activation: Activation) -> tf.Tensor:
    """Applies an activation function to each element of x, a tensor of any shape and float type.

    >>> activate(tf.constant([-1.0, 2.0]), 'squared_relu').numpy()
    array([0., 4.], dtype=float32)
    """
    match activation:
        case "identity":
            return x
        case "relu":
            return tf.nn.relu(x)
        case "squared_relu":
            return tf.square(tf.nn.relu(x))
        case "gelu":
            return tf.nn.gelu(x)
        case "gelu_tanh":
            return tf.nn.gelu(x, approximate=True)
        case "silu":
            return tf.nn.silu(x)
        case "sigmoid":
            return tf.sigmoid(x)
        case "tanh":
            return tf.tanh(x)
