"""Trains a small recognizer on several runtimes; `test_runtimes.py` runs it with a name.

It prints weights and losses of each as JSON. A process of its own, because TensorFlow and JAX
choose their devices once a process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np

from lingo.config import registry
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.learner.state import initial_state
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated

NUM_STEPS = 5
WRITERS = {
    "local": Local.params(),
    "replicated": Replicated.params(),
    "data2": Mesh.params(data=2),
}
RUNTIMES = {
    "asr.tones.words": {
        "local": Local.params(),
        "xla": Local.params(xla=True),
        "replicated": Replicated.params(),
        "data4": Mesh.params(data=4, shard_update=True),
        "sequence": Mesh.params(data=2, sequence=2),
    },
    "asr.tones.transducer": WRITERS,
    "asr.tones.attention": WRITERS,
}
SMALL = (
    "Tones.num_recordings=60",
    "AudioInput.batch_size=8",
    "AudioInput.boundaries=[100]",
    "ConformerEncoder.output_dim=16",
    "BatchNorm.statistics_over=8",
    "exp.num_layers=1",
)


def train(name: str, runtime: Params) -> dict[str, Any]:
    """Returns weights and losses after some steps."""
    params = registry.get(name, SMALL).params
    built = params.set(runtime=runtime).build()
    program = built.runtime.start(built.learner, initial_state(built.learner))
    batches = [built.train_input.batch(step) for step in range(NUM_STEPS)]
    report = program.train({k: np.stack([batch[k] for batch in batches]) for k in batches[0]})
    found = {"weights": program.state().weights, "losses": report["scalars"]["loss/total"]}
    return tf.nest.map_structure(lambda value: np.asarray(value).tolist(), found)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_platforms", "cpu")
    split_processor(2)
    experiment = sys.argv[1]
    found = {name: train(experiment, runtime) for name, runtime in RUNTIMES[experiment].items()}
    print(json.dumps(found))
