"""Trains a task of two phases on some runtimes; `test_phases.py` runs it.

    python phases.py RUNTIMES
    python phases.py stages

It prints the state and the reports of each as JSON, and whether steps after a checkpoint between
two turns of a phase are those without a break. A process of its own, because TensorFlow and JAX
choose their devices once a process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np

from lingo.config.lazy import tf
from lingo.learner.phase import Phase
from lingo.learner.state import Learner, TrainState, initial_state
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.program import Program
from lingo.runtimes.replicated.replicated import Replicated
from lingo.runtimes.replicated.simulated_torus import SimulatedTorus
from tests.lingo.learner.test_phase import (
    STUDENT,
    TEACHER,
    adam_and_sgd,
    batches,
    learner,
    pair,
)
from tests.lingo.runtimes import on_stages

NUM_STEPS, BREAK = 6, 4
TWO, THREE = ["CPU:0", "CPU:1"], ["CPU:0", "CPU:1", "CPU:2"]
RUNTIMES = {
    "local": Local.params(),
    "xla": Local.params(xla=True),
    "accumulation": Local.params(),
    "replicated": Replicated.params(devices=THREE),  # 8 examples: one replica has padding
    "replicated_xla": Replicated.params(devices=TWO, xla=True),
    "replicated_update": Replicated.params(devices=TWO, shard_update=True),
    "torus": SimulatedTorus.params(shape=[2, 2]),
    "torus_update": SimulatedTorus.params(shape=[2, 2], shard_update=True),
    "data8": Mesh.params(data=8),
    "model": Mesh.params(data=2, model=2),
    "mesh_update": Mesh.params(data=3, shard_update=True),
    "mesh_weights": Mesh.params(data=2, model=2, shard_weights=True),
}


class InStages(on_stages.Classes):
    """A chain on several devices, and after it a head, which sees the moved chain."""

    def phases(self) -> dict[str, Phase]:
        return {"chain": Phase(("chain/.*",), "error"), "head": Phase(("head",), "error")}

    def error(self, batch: Any) -> dict[str, Any]:
        return on_stages.Classes.loss(self, batch)


def staged(num_devices: int) -> Any:
    """Returns the experiment of `on_stages` with two phases."""
    params = on_stages.experiment(num_devices)
    params.task = InStages.params(chain=params.task.chain)
    return params


def train_in_stages() -> dict[str, Any]:
    """Returns the state after three steps on one device and on three."""
    states = {}
    for num in (1, 3):
        built = staged(num).build()
        program = built.runtime.start(built.learner, initial_state(built.learner))
        program.train(on_stages.batches(built, range(3)))
        states[num] = lists(program.state()._asdict())
    return states


def two_phases(name: str) -> Learner:
    """Returns a learner whose teacher learns at every second step, if the batch is of its kind."""
    teacher = TEACHER._replace(examples="odd", first_step=1, every_steps=2)
    optimizer = adam_and_sgd(max_grad_norm=1.0, ema_decay=0.9)
    task = pair(teacher=teacher, student=STUDENT)
    return learner(task, optimizer, accumulation_steps=2 if name == "accumulation" else 1)


def stacked(first: int, last: int) -> dict[str, np.ndarray]:
    several = batches(last)[first:]
    return {name: np.stack([batch[name] for batch in several]) for name in several[0]}


def lists(values: Any) -> Any:
    return tf.nest.map_structure(lambda value: np.asarray(value).tolist(), values)


def started(name: str, state: TrainState | None = None) -> Program:
    one = two_phases(name)
    return RUNTIMES[name].build().start(one, initial_state(one) if state is None else state)


def train(name: str) -> dict[str, Any]:
    program = started(name)
    first = program.train(stacked(0, BREAK))
    middle = program.state()
    last = program.train(stacked(BREAK, NUM_STEPS))
    state = lists(program.state()._asdict())
    again = started(name, tf.nest.map_structure(np.array, middle))
    repeated = again.train(stacked(BREAK, NUM_STEPS))
    after = lists((again.state()._asdict(), repeated))
    is_exact = after == (state, lists(last))
    reports = {kind: lists(first[kind]) for kind in ("scalars", "metric_states")}
    return {"state": state, "reports": reports, "is_exact": is_exact}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_platforms", "cpu")
    split_processor(3)
    if sys.argv[1:] == ["stages"]:
        print(json.dumps(train_in_stages()))
    else:
        print(json.dumps({name: train(name) for name in sys.argv[1:]}))
