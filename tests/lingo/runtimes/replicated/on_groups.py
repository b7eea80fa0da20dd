"""Trains batch norms whose groups are larger than a replica's share; `test_groups.py` runs it.

It computes on one device, on four replicas and on two meshes, and prints the results as JSON. A
process of its own, because TensorFlow and JAX choose their devices once a process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import Chain, ConvNorm, ImageHead, Remat
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.learner.state import Learner, TrainState, initial_state
from lingo.learner.task import Task
from lingo.models import BasicBlock
from lingo.optim.by_path import ByPath
from lingo.optim.layerwise import Lamb, Lars
from lingo.optim.sgd import Sgd
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.program import Program
from lingo.runtimes.replicated.replicated import Replicated
from tasks.image.task import ImageClassification

OFFSET = 300.0
RATE, EMA_DECAY = 0.1, 0.5
NORM = {"decay": 0.9, "epsilon": 1e-3}
STEPS, ROWS = 5, 16
LAYOUTS = {
    "local": Local.params(),
    "replicated": Replicated.params(),
    "data4": Mesh.params(data=4, shard_update=True),
    "data2_model2": Mesh.params(data=2, model=2),
}


class Distance(Task):
    """Squares of the distance of normalized values, far from zero, from their targets."""

    norm: BatchNorm = BatchNorm.params(dim=2, **NORM)

    def setup(self) -> None:
        self.w = self.weight("w", [3, 2], axes=(None, None))
        self.norm = self.p.norm.build()

    def loss(self, batch: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        y = self.norm(tf.einsum("bi,io->bo", batch["x"], self.w) + OFFSET)
        return {"examples": tf.reduce_sum(tf.square(y - batch["y"]))}


def batches(num_steps: int, size: int = 8) -> dict[str, np.ndarray]:
    """Returns the batches of `Distance`, [K, B, ...]."""
    draw = np.random.RandomState(0)
    return {
        "x": draw.randn(num_steps, size, 3).astype("f"),
        "y": draw.randn(num_steps, size, 2).astype("f"),
        "weights": np.ones([num_steps, size], "f"),
        "rows": np.tile(np.arange(size, dtype="i"), [num_steps, 1]),
    }


def start(runtime: Params, task: Params, optimizer: Params) -> Program:
    learner = Learner(task.build(), optimizer.build(), seed=1)
    return runtime.build().start(learner, initial_state(learner))


def distances(runtime: Params, statistics_over: int) -> dict[str, Any]:
    """Returns the tensors of `Distance` before and after two steps, by program path.

    `distance` is what an evaluation of averages finds of the first batch.
    """
    task = Distance.params()
    task.norm.statistics_over = statistics_over
    program = start(runtime, task, Sgd.params(learning_rate=RATE, ema_decay=EMA_DECAY))
    before, data = tensors(program.state()), batches(2)
    rows = program.example_slice(data["rows"].shape[1])
    own = {name: value[:, rows] for name, value in data.items()}
    program.train(own)
    state = program.state()
    metrics = program.evaluate({name: value[0] for name, value in own.items()}, weights="ema")
    return {
        "before": before,
        "trained": tensors(state),
        "ema": tensors(state.select("ema")),
        "distance": float(metrics["loss/examples"]["sum"]),
    }


def tensors(state: TrainState) -> dict[str, Any]:
    own = state.weights | state.state
    return {name: np.asarray(value).tolist() for name, value in own.items()}


def resnet() -> Params:
    """Returns a small ResNet, whose block is rematerialized; groups are of 8 examples."""
    model = Chain.params(
        layers=[
            ConvNorm.params(dim=1, output_dim=4),
            Remat.params(layer=BasicBlock.params(dim=4, output_dim=8, stride=2)),
            ImageHead.params(dim=8, num_classes=3),
        ]
    )
    model.all(BatchNorm).set(statistics_over=ROWS // 2)
    return ImageClassification.params(model=model, num_classes=3, image_shape=(6, 6, 1))


def large_batch_optimizer() -> Params:
    """Returns LAMB for the block, LARS for the rest."""
    groups = {
        ".*/layers/1/.*": Lamb.params(epsilon=1e-3),
        ".*/layers/[02]/.*": Lars.params(trust_coefficient=0.1, weight_decay=1e-4),
    }
    return ByPath.params(learning_rate=0.05, groups=groups)


def losses(runtime: Params) -> list[float]:
    """Returns the loss of each step of the ResNet."""
    draw = np.random.default_rng(0)
    data = {
        "images": draw.normal(1.0, 1.0, [STEPS, ROWS, 6, 6, 1]).astype("f"),
        "labels": draw.integers(0, 3, [STEPS, ROWS], np.int32),
        "weights": np.ones([STEPS, ROWS], "f"),
        "rows": np.tile(np.arange(ROWS, dtype="i"), [STEPS, 1]),
    }
    report = start(runtime, resnet(), large_batch_optimizer()).train(data)
    return np.asarray(report["scalars"]["loss/total"]).tolist()


def on_virtual_devices() -> dict[str, Any]:
    import jax

    split_processor(4)
    jax.config.update("jax_num_cpu_devices", 4)
    return {
        "losses": {name: losses(runtime) for name, runtime in LAYOUTS.items()},
        "two of four": distances(Replicated.params(devices=["CPU:2", "CPU:3"]), 8),
        "distances": {name: distances(runtime, 4) for name, runtime in LAYOUTS.items()},
    }


if __name__ == "__main__":
    print(json.dumps(on_virtual_devices()))
