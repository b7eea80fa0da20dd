"""Two small regressions that may share a layer, their data, and their steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.data.array_spec import ArraySpec
from lingo.data.input import Input
from lingo.data.multi_task_input import MultiTaskInput
from lingo.data.task_schedule import RoundRobinTasks
from lingo.layers.dropout import Dropout
from lingo.layers.linear import Linear
from lingo.learner.multi_task import MultiTask
from lingo.learner.state import Learner, TrainState, initial_state, load_arrays
from lingo.learner.step import train_step
from lingo.learner.task import Task
from lingo.optim.sgd import Sgd

B, D, H = 8, 3, 4
SHARED = {"tasks/b/trunk": "tasks/a/trunk"}


class Points(Input):
    """Points [B, D] and their numbers [B], drawn by `part`."""

    part: int
    size: int = 40

    thread_safe = True

    def prepare(self, *, progress: Any = None) -> None:
        del progress

    def num_examples(self) -> int:
        return self.p.size

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        draw = np.random.RandomState(self.p.part)
        x, y = draw.normal(size=(self.p.size, D)), draw.normal(size=self.p.size)
        rows = numbers % self.p.size
        return {"x": x[rows].astype(np.float32), "y": y[rows].astype(np.float32)}

    def specs(self) -> dict[str, ArraySpec]:
        size = self.p.batch_size
        return super().specs() | {"x": ((size, D), "float32"), "y": ((size,), "float32")}

    def fingerprint(self) -> dict[str, Any]:
        return {"part": self.p.part}

    def offers(self) -> dict[str, Any]:
        return {"dim": D}


class Regression(Task):
    """Half of the squared error of a linear function of a linear function, the trunk."""

    dim: int = D
    trunk: Linear = Linear.params(use_bias=False, output_dim=H)
    head: Linear = Linear.params(use_bias=False, dim=H, output_dim=1)
    dropout: Dropout = Dropout.params(rate=0.0)

    def setup(self) -> None:
        self.trunk, self.head = self.p.trunk.build(dim=self.p.dim), self.p.head.build()
        self.dropout = self.p.dropout.build()
        self.mean = self.state("mean", [], decay=0.5)

    def loss(self, batch: Any) -> dict[str, tf.Tensor]:
        weights, found = batch["weights"], self.predict(batch)["y"]
        self.batch_statistic("mean", tf.reduce_sum(weights * found), tf.reduce_sum(weights))
        self.side_metric("size", {"sum": tf.reduce_sum(found), "weight": tf.reduce_sum(weights)})
        return {"error": 0.5 * tf.reduce_sum(weights * (found - batch["y"]) ** 2)}

    def predict(self, batch: Any) -> dict[str, tf.Tensor]:
        hidden = self.dropout(self.trunk(batch["x"]))
        return {"y": self.head(hidden)[:, 0]}


def tasks(**shared: str) -> Params:
    return MultiTask.params(tasks={"a": Regression, "b": Regression}, shared=shared)


def data(**fields: Any) -> MultiTaskInput:
    inputs = {
        "a": Points.params(part=1, batch_size=B),
        "b": Points.params(part=2, batch_size=2 * B),
    }
    return MultiTaskInput.params(**{"inputs": inputs, "schedule": RoundRobinTasks} | fields).build()


def learner(task: Params, optimizer: Any = None, **fields: Any) -> Learner:
    optimizer = Sgd.params(learning_rate=0.1) if optimizer is None else optimizer
    one = Learner(task.build(), optimizer.build(), seed=3, **fields)
    one.check()
    return one


def begin(one: Learner) -> TrainState:
    return load_arrays(initial_state(one))


def train(one: Learner, state: TrainState, batches: list[Any]) -> list[tuple[TrainState, Any]]:
    """Returns state and report after each step, as NumPy arrays."""
    step, done = tf.function(lambda s, b: train_step(one, s, b), autograph=False), []
    now = tf.nest.map_structure(tf.constant, state)
    for batch in batches:
        now, report = step(now, {k: tf.constant(v) for k, v in batch.items()})
        done.append(load_arrays((now, report)))
    return done
