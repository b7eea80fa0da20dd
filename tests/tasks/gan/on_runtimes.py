"""Trains small GANs on several runtimes; `test_runtimes.py` runs it.

It prints weights and losses of each, or why it refuses, as JSON. A process of its own, because
TensorFlow and JAX choose their devices once a process.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np

from lingo.config import registry
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.learner.state import initial_state
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated

NUM_STEPS = 3
RUNTIMES = {
    "local": Local.params(),
    "xla": Local.params(xla=True),
    "replicated": Replicated.params(),
    "data4": Mesh.params(data=4, shard_update=True),
    "rows": Mesh.params(data=2, height=2),
}
SMALL = ("train_input.batch_size=8", "Generator.num_filters=4", "Discriminator.num_filters=4")
FORMS = {
    "non_saturating": ("gan.digits", ()),
    "wasserstein": ("gan.digits_wasserstein", ("task.generator_every_steps=2",)),
}


def train(name: str, overrides: tuple[str, ...], runtime: Params) -> dict[str, Any]:
    params = registry.get(name, [*SMALL, *overrides]).params
    built = params.set(runtime=runtime).build()
    program = built.runtime.start(built.learner, initial_state(built.learner))
    batches = [built.train_input.batch(step) for step in range(NUM_STEPS)]
    try:
        report = program.train({k: np.stack([batch[k] for batch in batches]) for k in batches[0]})
    except ParamError as error:
        return {"refused": str(error)}
    found = {"weights": program.state().weights, "losses": report["metric_states"]}
    return tf.nest.map_structure(lambda value: np.asarray(value).tolist(), found)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_platforms", "cpu")
    split_processor(2)
    found = {
        form: {name: train(*experiment, runtime) for name, runtime in RUNTIMES.items()}
        for form, experiment in FORMS.items()
    }
    print(json.dumps(found))
