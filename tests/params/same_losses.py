"""Trains a small translation model for five steps on each runtime, and prints the losses as JSON.

    python -m tests.params.same_losses NAME TABLE

A process of its own, because TensorFlow and JAX choose their devices once a process.
"""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np

from lingo.learner.state import initial_state
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated
from tests.params.test_catalogs import small

OVERRIDES = {
    "local": [],
    "mesh": ["runtime=Mesh(data=2,model=2)"],
    "replicated": ["runtime=Replicated(devices=[CPU:0,CPU:1])"],
    "pipeline": ["Stack=Pipeline(num_stages=2,num_micro_batches=2)"],
}
PERIOD = {"dense": 1, "moe_8": 2}


def main(name: str, table: pathlib.Path) -> None:
    """Prints losses by runtime; a stage of a pipeline has a whole period of layers."""
    Mesh.params(data=2, model=2).build().make_devices(4)
    Replicated.params(devices=["CPU:0", "CPU:1"]).build().make_devices(2)
    found = {}
    for runtime, overrides in OVERRIDES.items():
        layers = [f"Stack.num_layers={2 * PERIOD[name]}"]
        rates = ["FeedForward.dropout_rate=0.0", "TransformerLayer.dropout_rate=0.0"]
        rates += ["DotProductAttention.dropout_rate=0.0", "EncoderDecoder.dropout_rate=0.0"]
        built = small(name, table, *layers, *rates, *overrides).build()
        program = built.runtime.start(built.learner, initial_state(built.learner))
        losses = []
        for step in range(5):
            batch = {key: value[None] for key, value in built.train_input.batch(step).items()}
            losses += np.ravel(program.train(batch)["scalars"]["loss/total"]).tolist()
        found[runtime] = losses
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
