"""Trains a small quantized model on some runtimes; `test_quantized.py` runs it.

    python quantized.py RUNTIMES

It prints the losses, ranges and count of steps of each as JSON. A process of its own, because
TensorFlow and JAX choose their devices once a process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np

from lingo.config.params import Params
from lingo.layers.quantization.domain import PassiveAsymQDomain
from lingo.layers.quantization.quantized import Quantized
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.repeat import Repeat
from lingo.learner.state import Learner, initial_state
from lingo.optim.sgd import Sgd
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

NUM_STEPS, SIZE, T, V = 2, 8, 4, 11
PIPELINE = Pipeline.params(num_stages=2, num_micro_batches=4)
RUNTIMES = {
    "local": (Local.params(), Repeat.params(), 1),
    "accumulation": (Local.params(), Repeat.params(), 4),
    "replicated": (Replicated.params(), Repeat.params(), 1),
    "data8": (Mesh.params(data=8), Repeat.params(), 1),
    "pipeline": (Local.params(), PIPELINE, 1),
    "stages": (Mesh.params(data=2, stage=2), PIPELINE, 1),
}
"""Runtime, stack of layers, and parts of a batch, by name."""


def train(runtime: Params, stack: Params, parts: int) -> dict[str, Any]:
    """Trains two layers for two steps; rounding begins with the second."""
    domain = PassiveAsymQDomain.params(range_decay=0.5, delay_start_steps=1)
    layer = TransformerLayer.params()
    layer.attention.num_heads = 2
    stack = stack.copy().set(layer=Quantized.params(layer=layer, domain=domain), num_layers=2)
    model = LanguageModel.params(dim=8, stack=stack)
    task = LanguageModeling.params(model=model, vocab_size=V)
    optimizer = Sgd.params(learning_rate=0.01).build()
    learner = Learner(task.build(), optimizer, accumulation_steps=parts)
    draw = np.random.default_rng(0)
    shape = [NUM_STEPS, SIZE, T]
    batches = {
        "tokens": draw.integers(0, V, shape, np.int32),
        "targets": draw.integers(0, V, shape, np.int32),
        "segments": np.ones(shape, np.int32),
        "positions": np.broadcast_to(np.arange(T, dtype=np.int32), shape).copy(),
        "weights": np.ones([NUM_STEPS, SIZE], np.float32),
        "rows": np.tile(np.arange(SIZE, dtype=np.int32), [NUM_STEPS, 1]),
    }
    program = runtime.build().start(learner, initial_state(learner))
    report = program.train(batches)
    state = program.state().state
    return {
        "losses": np.asarray(report["scalars"]["loss/total"]).tolist(),
        "states": {name: np.ravel(value).tolist() for name, value in state.items()},
    }


if __name__ == "__main__":
    split_processor(2)
    jax.config.update("jax_num_cpu_devices", 8)
    print(json.dumps({name: train(*RUNTIMES[name]) for name in sys.argv[1:]}))
