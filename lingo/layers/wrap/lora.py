"""Low-rank adaptation: a trained change of few parameters for each matrix."""

from __future__ import annotations

import math

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.initial import FAN_IN, ZEROS
from lingo.layers.wrap.reweighted import Matrix, Reweighted


class Lora(Reweighted):
    """Computes with w + alpha / rank * a b, where b is initially zero (Hu et al. 2021, sec. 4.1).

    The optimizer freezes the layer's own weights: `ByPath.params(learning_rate=...,
    groups={".*_lora_[ab]": AdamW, "(?!.*_lora_).*": Frozen})`. Departs from the paper: there is no
    dropout of the input of a, since the change is added to the matrix, not to the output.

    Weights, for each matrix of input sizes I and output sizes O:
        <name>_lora_a: [*I, rank].
        <name>_lora_b: [rank, *O].
    """

    rank: int = 8  # of the change
    alpha: float = 8.0  # its size: the change is alpha / rank times the product

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "rank")

    def declare(self, matrix: Matrix) -> None:
        rank, fan_in = self.p.rank, math.prod(matrix.inputs)
        shape, axes = [*matrix.inputs, rank], (*matrix.input_axes, None)
        self.companion_weight(matrix, "lora_a", shape, axes=axes, init=FAN_IN, fan_in=fan_in)
        shape, axes = [rank, *matrix.outputs], (None, *matrix.output_axes)
        self.companion_weight(matrix, "lora_b", shape, axes=axes, init=ZEROS)

    def reweight(self, matrix: Matrix, w: tf.Tensor) -> tf.Tensor:
        rank, stacked = self.p.rank, matrix.stack_sizes(w)
        a = tf.reshape(self.read(matrix, "lora_a"), [*stacked, math.prod(matrix.inputs), rank])
        b = tf.reshape(self.read(matrix, "lora_b"), [*stacked, rank, math.prod(matrix.outputs)])
        return w + self.p.alpha / rank * tf.reshape(a @ b, w.shape)
