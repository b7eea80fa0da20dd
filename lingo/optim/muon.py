"""Muon: the step of a matrix is its mean gradient with all singular values made equal.

Axes: R rows and C columns of a weight as a matrix (`lingo.optim.matrix`).
"""

from __future__ import annotations

from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.optim.matrix import MatrixOptimizer, as_matrices, from_matrices, matrix_shape
from lingo.optim.optimizer import Move, Slot, Update, Weight

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x^3 and x^5: the polynomial moves singular values in (0, 1] towards 1."""


class Muon(MatrixOptimizer):
    """Muon (Jordan et al. 2024), scaled to the size of AdamW's steps (Liu et al. 2025, sec. 2.2).

    Name the weights of the last layer, of positions, and biases with two axes in `adam`. One slot
    per matrix: half of Adam's memory. The defaults are Keras's.
    """

    momentum: float = 0.95  # decay of the sum of gradients
    nesterov: bool = True  # look one step ahead: gradient + momentum * sum
    num_iterations: int = 5  # of Newton and Schulz: more make singular values more equal
    root_mean_square: float | None = 0.2  # of a step; None: its singular values are about 1

    takes_rows = True

    def check(self) -> None:
        super().check()
        ranges.check_fraction(self.p, "momentum")
        ranges.check_positive(self.p, "num_iterations", "root_mean_square")

    def matrix_slots(self, weight: Weight) -> dict[str, Slot]:
        return {"m": Slot(weight.shape, 0.0, weight.names)}

    def matrix_move(self, update: Update) -> Move:
        p, grad, weight = self.p, update.gradient, update.weight
        m = p.momentum * update.slots["m"] + grad
        x = as_matrices(weight, grad + p.momentum * m if p.nesterov else m)
        size = update.rate
        if p.root_mean_square is not None:
            # A matrix with all singular values 1 has the root mean square max(R, C)^-0.5.
            size *= p.root_mean_square * max(matrix_shape(weight) or ()) ** 0.5
        step = from_matrices(weight, equalize_singular_values(x, p.num_iterations))
        return Move(size * step, {"m": m})


def equalize_singular_values(x: tf.Tensor, num_iterations: int) -> tf.Tensor:
    """Returns matrices with the singular vectors of x, and singular values near 1.

    `x` and the result are float32 [..., R, C]. Iterations of Newton and Schulz need products of
    matrices only; five bring singular values above 1/330 of the norm of x into 0.68..1.21. A matrix
    of zeros stays as it is.
    """
    shape: Any = x.shape
    is_tall = shape[-2] > shape[-1]
    if is_tall:  # products are smaller on the shorter side
        x = tf.linalg.matrix_transpose(x)
    x /= tf.norm(x, axis=(-2, -1), keepdims=True) + 1e-7
    linear, cubic, quintic = _QUINTIC
    for _ in range(num_iterations):
        square = tf.matmul(x, x, transpose_b=True)
        x = linear * x + tf.matmul(cubic * square + quintic * tf.matmul(square, square), x)
    return tf.linalg.matrix_transpose(x) if is_tall else x
