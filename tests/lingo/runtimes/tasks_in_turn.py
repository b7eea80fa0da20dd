"""Trains two tasks with a shared layer on some runtimes; `test_tasks_in_turn.py` runs it.

    python tasks_in_turn.py RUNTIMES

It prints the state, the losses and the metrics of each as JSON, and whether steps after a
checkpoint are those without a break. A process of its own, because TensorFlow and JAX choose their
devices once a process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np

from lingo.config.lazy import tf
from lingo.learner.state import Learner, TrainState, initial_state
from lingo.optim.adafactor import Adafactor
from lingo.optim.adam import Adam
from lingo.optim.by_path import ByPath
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.program import Program
from lingo.runtimes.replicated.replicated import Replicated
from tests.lingo.learner import several_tasks

LOOPS = ((0, 2), (2, 4), (4, 6), (6, 8), (8, 10))  # steps per call; a cycle of a task has two
BREAK = 3  # loops before the checkpoint
TWO, THREE = ["CPU:0", "CPU:1"], ["CPU:0", "CPU:1", "CPU:2"]
RUNTIMES = {
    "local": Local.params(),
    "xla": Local.params(xla=True),
    "accumulation": Local.params(),
    "replicated": Replicated.params(devices=THREE),  # 8 examples: one replica has padding
    "replicated_xla": Replicated.params(devices=TWO, xla=True),
    "replicated_update": Replicated.params(devices=TWO, shard_update=True),
    "data8": Mesh.params(data=8),
    "model": Mesh.params(data=2, model=2),
    "mesh_update": Mesh.params(data=3, shard_update=True),
    "mesh_weights": Mesh.params(data=2, model=2, shard_weights=True),
}
DATA = several_tasks.data(cycle_steps=2)


def two_tasks(name: str) -> Learner:
    task = several_tasks.tasks(**several_tasks.SHARED)
    for one in task.tasks.values():
        one.dropout.rate = 0.2
    groups = {".*/trunk/w": Adafactor, ".*/head/w": Adam}
    optimizer = ByPath.params(learning_rate=0.05, groups=groups, max_grad_norm=1.0, ema_decay=0.9)
    parts = 2 if name == "accumulation" else 1
    return several_tasks.learner(task, optimizer, accumulation_steps=parts)


def lists(values: Any) -> Any:
    return tf.nest.map_structure(lambda value: np.asarray(value).tolist(), values)


def started(name: str, state: TrainState | None = None) -> Program:
    one = two_tasks(name)
    return RUNTIMES[name].build().start(one, initial_state(one) if state is None else state)


def trained(program: Program, loops: Any) -> list[Any]:
    """Returns scalars and metrics of each loop."""
    reports = []
    for first, last in loops:
        batches = [DATA.batch(step) for step in range(first, last)]
        stacked = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
        report = program.train(stacked)
        reports.append({kind: lists(report[kind]) for kind in ("scalars", "metric_states")})
    return reports


def evaluated(program: Program) -> Any:
    """Returns the metric states of both tasks, with the averages of weights."""
    return [
        lists(program.read_sums(program.evaluate(DATA.batch(step), weights="ema")))
        for step in (0, 2)
    ]


def train(name: str) -> dict[str, Any]:
    program = started(name)
    reports = trained(program, LOOPS[:BREAK])
    middle = program.state()
    last = trained(program, LOOPS[BREAK:])
    state = lists(program.state()._asdict())
    again = started(name, tf.nest.map_structure(np.array, middle))
    repeated = trained(again, LOOPS[BREAK:])
    is_exact = (lists(again.state()._asdict()), repeated) == (state, last)
    found = {"state": state, "reports": reports, "metrics": evaluated(program)}
    return {"found": found, "is_exact": is_exact}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_platforms", "cpu")
    split_processor(3)
    print(json.dumps({name: train(name) for name in sys.argv[1:]}))
