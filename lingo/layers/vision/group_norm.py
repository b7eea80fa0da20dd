"""Group normalization: normalizes groups of channels of each example.

Axes: B batch, C channels, G groups of neighbouring channels.
"""

from __future__ import annotations

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.initial import ONES, ZEROS
from lingo.layers.norm import Norm
from lingo.ops.shape import sizes_of


class GroupNorm(Norm):
    """y = gamma * (x - mean) / sqrt(variance + epsilon) + beta (Wu and He 2018, eq. 1).

    Mean and variance are over all positions and the C / G channels of a group, of one example: no
    result depends on other examples, and there are no moving averages. One group is layer
    normalization over the whole image; C groups are instance normalization.

    Weights:
        gamma: [C], initially ones, or zeros with `zero_init`.
        beta: [C], initially zeros.
    """

    num_groups: int = 32  # G
    zero_init: bool = False  # whether gamma starts at zero, as at the end of a residual branch

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_groups")
        if self.p.dim % self.p.num_groups:
            raise ParamError(
                f"dim={self.p.dim} is not a multiple of num_groups={self.p.num_groups}"
            )

    def setup(self) -> None:
        shape, init = [self.p.dim], ZEROS if self.p.zero_init else ONES
        self.gamma = self.weight("gamma", shape, axes=(None,), init=init, dtype="float32")
        self.beta = self.weight("beta", shape, axes=(None,), init=ZEROS, dtype="float32")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Normalizes the channels of x, [B, ..., C], any float type; statistics are float32."""
        x = tf.cast(x, tf.float32)
        *front, channels = sizes_of(x)
        groups = tf.reshape(x, [*front, self.p.num_groups, channels // self.p.num_groups])
        axes = [*range(1, len(front)), len(front) + 1]
        groups -= tf.reduce_mean(groups, axes, keepdims=True)
        variance = tf.reduce_mean(tf.square(groups), axes, keepdims=True)
        y = tf.reshape(groups * tf.math.rsqrt(variance + self.p.epsilon), [*front, channels])
        return tf.cast(y * self.gamma + self.beta, self.p.dtype)
