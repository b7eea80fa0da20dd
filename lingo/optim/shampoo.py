"""Shampoo: the step of a matrix is divided by roots of the means of G G^T and G^T G.

Axes: R rows and C columns of a weight as a matrix (`lingo.optim.matrix`); D either.
"""

from __future__ import annotations

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.optim.matrix import MatrixOptimizer, as_matrices, from_matrices, matrix_shape
from lingo.optim.optimizer import Move, Slot, Update, Weight, weight_norm

_LEAST_EIGENVALUE = 1e-30  # so that roots of a matrix of zeros are finite


class Shampoo(MatrixOptimizer):
    """Shampoo (Gupta et al. 2018, algorithm 1), with Adam's sizes of steps (Anil et al. 2020).

    A step is left^-1/4 M right^-1/4 for the mean gradient M, where `left` [R, R] and `right` [C, C]
    sum G G^T and G^T G of the gradients G. A side longer than `max_dim` has no such sum, and the
    other side's exponent is -1/2 then. `statistics_decay=1`, `beta1=0` and `graft=False` are the
    paper's algorithm. A matrix with two longer sides moves by Adam.
    """

    statistics_decay: float = 0.999  # of `left` and `right` per step; 1: they are sums
    max_dim: int = 1024  # longest side with a matrix of its own
    root_steps: int = 1  # number of steps between two computations of the roots
    ridge: float = 1e-6  # least eigenvalue of `left` and `right`, relative to the largest
    graft: bool = True  # whether a step has the L2 norm of Adam's

    takes_rows = True

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "statistics_decay", "max_dim", "root_steps", "ridge")
        ranges.check_at_most(self.p, 1, "statistics_decay")

    def is_matrix(self, weight: Weight) -> bool:
        return bool(self._sides(weight))

    def matrix_slots(self, weight: Weight) -> dict[str, Slot]:
        axes = (*range(weight.num_stacked), None, None)
        names = ["m", "v"] if self.p.graft else ["m"]
        slots = dict.fromkeys(names, Slot(weight.shape, 0.0, weight.names))
        for side, dim in self._sides(weight).items():
            slot = Slot((*weight.stack_shape, dim, dim), 0.0, weight.names, axes)
            slots |= {side: slot, f"{side}_root": slot}
        return slots

    def matrix_move(self, update: Update) -> Move:
        weight, grad, m, rate = update.weight, update.gradient, update.slots["m"], update.rate
        after = self._sides_after(update)
        after["m"] = m + (1.0 - self.p.beta1) * (grad - m)
        matrices = as_matrices(weight, after["m"])
        if "left" in after:
            matrices = tf.matmul(after["left_root"], matrices)
        if "right" in after:
            matrices = tf.matmul(matrices, after["right_root"])
        step = from_matrices(weight, matrices)
        if self.p.graft:
            adam, norm = self.adam_move(update), weight_norm(weight, step)
            rate = weight_norm(weight, adam.decrement) / tf.where(norm > 0, norm, 1.0)
            after["v"] = adam.slots["v"]
        return Move(rate * step, after)

    def _sides(self, weight: Weight) -> dict[str, int]:
        """Returns {name: size} of the sides of a matrix that have a sum of their own."""
        sides = dict(zip(("left", "right"), matrix_shape(weight) or (), strict=False))
        return {side: dim for side, dim in sides.items() if dim <= self.p.max_dim}

    def _sides_after(self, update: Update) -> dict[str, tf.Tensor]:
        """Returns the sums of each side after a step, and their inverse roots."""
        gradient, decay = as_matrices(update.weight, update.gradient), self.p.statistics_decay
        part = 1.0 if decay == 1.0 else 1.0 - decay
        sums = {}
        for side in self._sides(update.weight):
            square = tf.matmul(
                gradient, gradient, transpose_a=side == "right", transpose_b=side == "left"
            )
            sums[side] = decay * update.slots[side] + part * square

        def compute_roots() -> list[tf.Tensor]:
            return [inverse_root(x, 2 * len(sums), self.p.ridge) for x in sums.values()]

        if self.p.root_steps == 1:
            roots = compute_roots()
        else:
            old = [update.slots[f"{side}_root"] for side in sums]
            is_first = tf.reduce_all(old[0] == 0.0)  # step 0 may be skipped: it was not finite
            is_due = (update.step % self.p.root_steps == 0) | is_first
            roots = tf.cond(is_due, compute_roots, lambda: old)
        return sums | {f"{side}_root": root for side, root in zip(sums, roots, strict=True)}


def inverse_root(x: tf.Tensor, root: int, ridge: float) -> tf.Tensor:
    """Returns x^(-1 / root) of symmetric matrices x without negative eigenvalues.

    `x` and the result are float32 [..., D, D]. Eigenvalues below `ridge` times the largest count
    as that.
    """
    # LAPACK raises an error at NaN and infinity; the step, not this function, skips such an update.
    is_finite = tf.reduce_all(tf.math.is_finite(x), axis=(-2, -1), keepdims=True)
    values, vectors = tf.linalg.eigh(tf.where(is_finite, x, 0.0))
    least = tf.maximum(ridge * values[..., -1:], _LEAST_EIGENVALUE)
    powers = tf.maximum(values, least) ** (-1.0 / root)
    return tf.matmul(vectors * powers[..., None, :], vectors, transpose_b=True)
