"""Evaluates 64 batches on one device, replicas and a mesh; prints reads and sums as JSON.

A process of its own, because TensorFlow and JAX choose their devices once a process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.data.array_input import ArrayInput
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.learner.state import Learner, initial_state
from lingo.learner.task import Task
from lingo.metrics import confusion, mean
from lingo.optim.sgd import Sgd
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated
from lingo.trainer.evaluation.evaluate import sum_metrics

SIZE, BATCH, K = 507, 8, 3  # 64 batches, the last of 3 examples
LARGE = 2.0**24  # the sum of the first batch; above it float32 has no odd numbers

RUNTIMES = {
    "local": Local.params(),
    "replicated": Replicated.params(devices=["CPU:0", "CPU:1"]),
    "mesh": Mesh.params(data=8),
}


def examples() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {
        "x": draw.uniform(size=[SIZE, 1]).astype("f"),
        "labels": draw.integers(0, K, [SIZE], np.int32),
        "predictions": draw.integers(0, K, [SIZE], np.int32),
        "counts": np.where(np.arange(SIZE), np.arange(SIZE) % BATCH == 1, LARGE - 1).astype("f"),
    }


class Measure(Task):
    """Metrics of the examples themselves; means are sums in float32 over a batch."""

    body: Layer = Linear.params(output_dim=1, use_bias=False)

    def setup(self) -> None:
        self.body = self.p.body.build(dim=1)

    def loss(self, batch: Any) -> dict[str, tf.Tensor]:
        return {"loss": tf.reduce_sum(self.body(batch["x"]))}

    def metrics(self, batch: Any) -> dict[str, Any]:
        weights = batch["weights"]
        counts = tf.reduce_sum(batch["counts"] * weights)
        return {
            "x": mean(tf.reduce_sum(batch["x"][:, 0] * weights), tf.reduce_sum(weights)),
            "counts": mean(counts, tf.reduce_sum(weights)),
            "classes": confusion(batch["labels"], batch["predictions"], weights, num_classes=K),
        }


def measured(runtime: Params) -> dict[str, Any]:
    """Returns the sums over all batches, and how many tensors were read in each and at the end."""
    learner = Learner(Measure.params().build(), Sgd.params(learning_rate=0.1).build())
    program = runtime.build().start(learner, initial_state(learner))
    data = ArrayInput.params(function=examples, batch_size=BATCH, shuffle=False, repeat=False)
    reads, asarray = [0], np.asarray

    def counted(value: Any, *args: Any, **options: Any) -> np.ndarray:
        reads[-1] += isinstance(value, (tf.Tensor, jax.Array))
        return asarray(value, *args, **options)

    def between(steps: range) -> Iterator[int]:
        for step in steps:
            yield step
            reads.append(0)

    np.asarray = counted
    try:
        sums = sum_metrics(program, data.build(), weights="trained", between=between)
    finally:
        np.asarray = asarray
    return {"reads": reads, "sums": tf.nest.map_structure(np.ndarray.tolist, sums)}


if __name__ == "__main__":
    split_processor(2)
    jax.config.update("jax_num_cpu_devices", 8)
    print(json.dumps({name: measured(runtime) for name, runtime in RUNTIMES.items()}))
