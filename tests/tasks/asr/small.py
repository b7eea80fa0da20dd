"""A small batch of recordings, a small encoder, and what tasks compute of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.layers import Linear
from lingo.layers.layer import Layer
from lingo.learner.state import initial_value
from lingo.learner.step import evaluate_batch, predict_batch
from tasks.asr.recognition import Recognition

B, T, F, V, U = 4, 5, 3, 3, 3
D = 4  # width of the encoder's frames
DRAW = np.random.RandomState(0)
BATCH: dict[str, Any] = {
    "features": DRAW.normal(size=(B, T, F)).astype("f"),
    "num_frames": np.array([5, 4, 2, 0], "i"),
    "labels": np.array([[1, 2, 0], [1, 1, 0], [2, 2, 0], [0, 0, 0]], "i"),
    "num_labels": np.array([2, 2, 2, 0], "i"),  # two equal labels of CTC need three frames
    "weights": np.array([1, 1, 1, 0], "f"),
    "rows": np.arange(B, dtype="i"),
}


class EveryFrame(Layer):
    """Encodes each frame alone."""

    dim: int
    linear: Linear = Linear

    def setup(self) -> None:
        self.linear = self.p.linear.build(dim=self.p.dim, output_dim=D)

    def __call__(self, x: tf.Tensor, *, inputs: Any) -> tf.Tensor:
        return self.linear(x)

    def subsample(self, segments: tf.Tensor) -> tf.Tensor:
        return segments

    def output_shape(self, shape: Any) -> tuple[int, ...]:
        return (*shape[:-1], D)


def draw_weights(task: Recognition, seed: int = 0) -> dict[str, Any]:
    return {k: initial_value(spec, seed) for k, spec in task.weights().items()}


def compute(
    task: Recognition, batch: dict[str, Any], weights: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Returns predictions and metrics."""
    tensors = {k: tf.constant(v) for k, v in weights.items()}
    given = {name: tf.constant(value) for name, value in batch.items()}

    @tf.function(autograph=False)
    def program() -> Any:
        found = predict_batch(task, tensors, {}, given)
        return found, evaluate_batch(task, tensors, {}, given)

    found, sums = tf.nest.map_structure(np.asarray, program())
    means = {k: v for n, s in sums.items() for k, v in task.read_metric(n, s).items()}
    return found, task.results(means)


def edits(a: list[int], b: list[int]) -> int:
    """Returns Levenshtein's distance, by recursion."""
    if not a or not b:
        return len(a) + len(b)
    kept = edits(a[1:], b[1:]) + (a[0] != b[0])
    return min(kept, edits(a[1:], b) + 1, edits(a, b[1:]) + 1)
