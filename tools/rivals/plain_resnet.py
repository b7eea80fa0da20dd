"""ResNet-50 (v1) and its step of momentum, written by hand in TensorFlow: one function.

Axes: B batch, H height, W width, C channels, K classes.
"""

from __future__ import annotations

import math
from typing import Any

from lingo.config.lazy import tf

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # channels, blocks, stride
MOMENTUM, DECAY, EPSILON = 0.9, 0.99, 1e-3


class PlainResNet:
    """The network in training: variables are made by the first step."""

    def __init__(self, *, num_classes: int, learning_rate: float) -> None:
        self._num_classes, self._learning_rate = num_classes, learning_rate
        self._weights: dict[str, Any] = {}
        self._averages: dict[str, Any] = {}
        self._sums: dict[str, Any] = {}
        self.step = tf.function(self._step, autograph=False)

    def _step(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns the loss of float32 [B, H, W, C] and int32 [B]."""
        with tf.GradientTape() as tape:
            nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self._logits(images))
            loss = tf.reduce_mean(nats)
        for name, gradient in tape.gradient(loss, self._weights).items():
            total = self._variable(self._sums, name, tf.zeros, gradient.shape)
            total.assign(MOMENTUM * total + gradient)
            self._weights[name].assign_sub(self._learning_rate * total)
        return loss

    def _logits(self, images: tf.Tensor) -> tf.Tensor:
        x = tf.nn.relu(self._conv_norm(images, "stem", 64, window=7, stride=2))
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        for i, (dim, blocks, stride) in enumerate(STAGES):
            for j in range(blocks):
                x = self._block(x, f"{i}/{j}", dim, stride if j == 0 else 1)
        x = tf.reduce_mean(x, [1, 2])
        w = self._variable(self._weights, "head/w", _normal, [x.shape[-1], self._num_classes])
        return x @ w + self._variable(self._weights, "head/b", tf.zeros, [self._num_classes])

    def _block(self, x: tf.Tensor, name: str, dim: int, stride: int) -> tf.Tensor:
        y = tf.nn.relu(self._conv_norm(x, f"{name}/in", dim, window=1, stride=stride))
        y = tf.nn.relu(self._conv_norm(y, f"{name}/middle", dim, window=3, stride=1))
        y = self._conv_norm(y, f"{name}/out", 4 * dim, window=1, stride=1)
        if x.shape != y.shape:
            x = self._conv_norm(x, f"{name}/shortcut", 4 * dim, window=1, stride=stride)
        return tf.nn.relu(x + y)

    def _conv_norm(
        self, x: tf.Tensor, name: str, dim: int, *, window: int, stride: int
    ) -> tf.Tensor:
        w = self._variable(self._weights, f"{name}/w", _normal, [window, window, x.shape[-1], dim])
        gamma = self._variable(self._weights, f"{name}/gamma", tf.ones, [dim])
        beta = self._variable(self._weights, f"{name}/beta", tf.zeros, [dim])
        x = tf.nn.conv2d(x, w, stride, "SAME")
        x, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            x, gamma, beta, epsilon=EPSILON, is_training=True
        )
        for part, value, init in (("mean", mean, tf.zeros), ("variance", variance, tf.ones)):
            average = self._variable(self._averages, f"{name}/{part}", init, [dim])
            average.assign(DECAY * average + (1 - DECAY) * value)
        return x

    def _variable(self, variables: dict[str, Any], name: str, init: Any, shape: Any) -> Any:
        """Returns a variable; the first time, makes it outside of the function that is traced."""
        if name not in variables:
            with tf.init_scope():
                variables[name] = tf.Variable(init(shape))
        return variables[name]


def _normal(shape: list[int]) -> tf.Tensor:
    return tf.random.normal(shape, stddev=math.sqrt(2 / math.prod(shape[:-1])))
