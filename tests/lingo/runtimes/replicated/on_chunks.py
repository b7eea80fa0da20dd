"""Trains with optimizers on four replicas that update chunks; `test_chunks.py` runs it.

Its arguments are names of cases. It prints what was computed as JSON. A process of its own, because
TensorFlow chooses its devices once a process.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.learner.state import TrainState, initial_state
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.program import Program
from lingo.runtimes.replicated.replicated import Replicated
from tests.lingo.runtimes.mesh.test_update_sharding import (
    CASES,
    NUM_STEPS,
    batches,
    learner,
    trained,
)

NUM_REPLICAS = 4


def flattened(state: TrainState) -> list[list[float]]:
    return [np.ravel(value).tolist() for value in tf.nest.flatten(state)]


def chunk_sizes(program: Any, values: Any) -> list[list[int]]:
    """Returns the number of elements of each replica's copy, or chunk, of each variable."""
    copies = map(program._own, tf.nest.flatten(values))
    return [[copy.shape.num_elements() for copy in own] for own in copies]


def num_bytes(program: Any) -> int:
    """Returns the bytes of the variables, but the step, of all replicas together."""
    sizes = chunk_sizes(program, program._variables._replace(step=()))
    return 4 * sum(map(sum, sizes))


def skips_steps(program: Program) -> bool:
    """Returns whether steps of infinite gradients leave the state as it was."""
    before = flattened(program.state()._replace(step=0))
    program.train(batches() | {"x": np.full([NUM_STEPS, 8], 1e30, np.float32)})
    return before == flattened(program.state()._replace(step=0))


def in_bfloat16() -> dict[str, Any]:
    """Returns what replicas compute, and keep, that gather weights in bfloat16."""
    one = learner(CASES["Sgd"])
    runtime = Replicated.params(shard_update=True, gather_dtype="bfloat16").build()
    replicas: Any = runtime.start(one, initial_state(one))
    state, bytes_ = trained(replicas), [num_bytes(replicas), runtime.host_bytes(one)]
    local = Local.params().build().start(one, state)
    batch = {name: array[0] for name, array in batches().items()}
    return {
        "weights": {k: np.asarray(v).tolist() for k, v in state.weights.items()},
        "bytes": bytes_,
        "chunks": chunk_sizes(replicas, replicas._variables.weights),
        "metrics": [
            [float(value) for value in tf.nest.flatten(program.evaluate(batch))]
            for program in (replicas, local)
        ],
    }


def main() -> None:
    split_processor(NUM_REPLICAS)
    found: dict[str, Any] = {}
    for name in sys.argv[1:]:
        one = learner(CASES[name])
        local = Local.params().build().start(one, initial_state(one))
        runtime = Replicated.params(shard_update=True).build()
        replicas = runtime.start(one, initial_state(one))
        states = [trained(program) for program in (local, replicas)]
        replicas.load(states[0])
        slots = [own[slot] for _, own in sorted(one.slots().items()) for slot in sorted(own)]
        found[name] = {
            "states": [flattened(state) for state in states],
            "loaded": flattened(replicas.state()) == flattened(states[0]),
            "skips": skips_steps(replicas),
            "bytes": [num_bytes(replicas), runtime.host_bytes(one)],
            "chunks": chunk_sizes(replicas, replicas._variables.slots),
            "sizes": [math.prod(slot.shape) for slot in slots],
            "layers": [3 if slot.shape[:1] == (3,) else 1 for slot in slots],
        }
    print(json.dumps(found | {"bfloat16": in_bfloat16()}))


if __name__ == "__main__":
    main()
