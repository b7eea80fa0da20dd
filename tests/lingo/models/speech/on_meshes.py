"""Trains Conformers on one device and on a mesh that splits time; `test_on_meshes.py` runs it.

    python on_meshes.py CONTEXT

It prints the largest differences of weights, states and losses after five steps as JSON. A process
of its own, because TensorFlow and JAX choose their devices once a process.
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
from lingo.layers import Attention, LocalWindow
from lingo.learner.state import initial_state
from lingo.models import ConformerConv
from lingo.optim import Sgd
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh

NUM_STEPS = 5
CONTEXTS = {"full": None, "causal": LocalWindow.params(window=5)}
"""Masks of the attention, by name; None: that of the experiment, which shows all frames. "causal"
also has convolutions of earlier frames, so devices exchange the last frames of their parts."""

SMALL = (
    "Tones.num_recordings=60",
    "AudioInput.batch_size=8",
    "AudioInput.boundaries=[128]",  # 32 frames of the encoder, 8 on each device
    "ConformerEncoder.output_dim=16",
    "BatchNorm.statistics_over=8",
    "task.spec_augment=None",
)


def train(runtime: Params, mask: Params | None) -> dict[str, Any]:
    """Returns weights, states and losses after some steps."""
    params = registry.get("asr.tones.words", SMALL).params
    if mask is not None:
        params.task.encoder.all(ConformerConv).set(is_causal=True)
        params.task.encoder.all(Attention).set(mask=mask)
    params.optimizer = Sgd.params(learning_rate=0.02)  # unlike Adam, it does not amplify rounding
    built = params.set(runtime=runtime).build()
    program = built.runtime.start(built.learner, initial_state(built.learner))
    batches = [built.train_input.batch(step) for step in range(NUM_STEPS)]
    report = program.train({k: np.stack([batch[k] for batch in batches]) for k in batches[0]})
    state = program.state()
    losses = report["scalars"]["loss/total"]
    return {"weights": state.weights, "states": state.state, "losses": losses}


def main(context: str) -> None:
    mask = CONTEXTS[context]
    one = train(Local.params(), mask)
    split = train(Mesh.params(data=2, sequence=4), mask)

    def differ(a: Any, b: Any) -> float:
        return float(np.max(np.abs(np.asarray(a) - np.asarray(b)) / (1 + np.abs(np.asarray(a)))))

    found = {
        name: max(tf.nest.flatten(tf.nest.map_structure(differ, one[name], split[name])))
        for name in one
    }
    first = registry.get("asr.tones.words", SMALL).params.train_input.build().batch(0)
    frames = first["num_frames"]
    moved = np.ptp(np.asarray(one["losses"]))
    print(json.dumps(found | {"shortest": int(frames.min()), "moved": float(moved)}))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_platforms", "cpu")
    split_processor(2)
    main(sys.argv[1])
