"""Trains with every optimizer on four replicas that update chunks; `test_chunks.py` runs it.

It prints what was computed as JSON. A process of its own, because TensorFlow chooses its devices
once a process.
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
from lingo.runtimes.replicated.replicated import Replicated
from lingo.runtimes.runtime import Program
from tests.lingo.runtimes.mesh.test_update_sharding import CASES, learner, trained

NUM_REPLICAS = 4


def flattened(state: TrainState) -> list[list[float]]:
    return [np.ravel(value).tolist() for value in tf.nest.flatten(state)]


def chunk_sizes(program: Any) -> list[list[int]]:
    """Returns the number of elements of each replica's variable of each slot."""
    slots = tf.nest.flatten(program._variables.slots)
    return [[copy.shape.num_elements() for copy in program._own(slot)] for slot in slots]


def skips_a_step(program: Program) -> bool:
    """Returns whether a step of infinite gradients leaves the state as it was."""
    before = flattened(program.state()._replace(step=0))
    x = np.full([1, 8], 1e30, np.float32)
    rows = np.arange(8, dtype=np.int32)[None]
    program.train({"x": x, "weights": np.ones_like(x), "rows": rows})
    return before == flattened(program.state()._replace(step=0))


def main() -> None:
    split_processor(NUM_REPLICAS)
    found = {}
    only = sys.argv[1:]
    for name, optimizer in CASES.items():
        if only and name not in only:
            continue
        one = learner(optimizer)
        local = Local.params().build().start(one, initial_state(one))
        replicas = Replicated.params(shard_update=True).build().start(one, initial_state(one))
        states = [trained(program) for program in (local, replicas)]
        replicas.load(states[0])
        slots = [own[slot] for _, own in sorted(one.slots().items()) for slot in sorted(own)]
        found[name] = {
            "states": [flattened(state) for state in states],
            "loaded": flattened(replicas.state()) == flattened(states[0]),
            "chunks": chunk_sizes(replicas),
            "sizes": [math.prod(slot.shape) for slot in slots],
            "layers": [3 if slot.shape[:1] == (3,) else 1 for slot in slots],
        }
    found["skips"] = skips_a_step(replicas)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
