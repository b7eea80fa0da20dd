"""Trains one small experiment on every runtime, one after the other; `test_same.py` runs it.

    python everywhere.py FOLDER RUNTIMES

It leaves FOLDER/<runtime>/step_00000020, each runtime's checkpoint, and prints what each has
computed as JSON: losses, metrics, texts, the digests of every checkpoint after it was loaded, and
of the state that began with the weights and slots of one device, and the losses of five steps more:
without a break, and after the checkpoint of one device was loaded.
A process of its own, because TensorFlow and JAX choose their devices once a process.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import keras
import numpy as np

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import digest
from lingo.checkpoints.sources.warm_start import WarmStart, weight_shapes
from lingo.checkpoints.store import Retention
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment
from lingo.data.document_input import TextInput
from lingo.data.record_source import TextFiles
from lingo.decode.sampling import Sampling
from lingo.layers.keras import Keras
from lingo.layers.layer import Dtype
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Chain
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.learner.state import (
    Learner,
    initial_state,
    named_tensors,
    restore_state,
    slot_shapes,
)
from lingo.learner.weight_noise import WeightNoise
from lingo.models.image.amoebanet import AmoebaNetHead, AmoebaNetStem
from lingo.optim.adam import AdamW
from lingo.optim.sgd import Momentum
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.program import Program
from lingo.runtimes.replicated.replicated import Replicated
from lingo.trainer.evaluation.evaluate import evaluate
from lingo.trainer.evaluation.generate import generate
from tasks.image.task import ImageClassification
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

NUM_STEPS = 20
ONE_BY_ONE = (1,) * NUM_STEPS
FIVE_AT_ONCE = (5,) * 4
MIXED = (5, 5, *ONE_BY_ONE[:10])

RUNTIMES = {
    "local": (Local.params(), ONE_BY_ONE),
    "replicated": (Replicated.params(devices=["CPU:0", "CPU:1"]), MIXED),
    "replicated_update": (Replicated.params(shard_update=True), MIXED),
    "data8": (Mesh.params(data=8), FIVE_AT_ONCE),
    "data2_model4": (Mesh.params(data=2, model=4), MIXED),
    "sharded_weights": (Mesh.params(data=2, model=2, shard_weights=True), FIVE_AT_ONCE),
    "sharded_update": (Mesh.params(data=3, shard_update=True), FIVE_AT_ONCE),  # most in rows
}
"""Mesh, and the number of steps of each call of its program, by name."""

NORMALIZED = {"groups": (8, 2), "uneven": (5, None)}
"""Rows of a batch, and of how many of them the statistics of a BatchNorm are, by name."""

NORMALIZING = ("local", "replicated", "data8")
"""Runtimes that train a BatchNorm: on every other mesh its rows are split as on `data8`."""


WITH_KERAS = ("local", "replicated", "data2_model4")
"""Runtimes that train layers of Keras."""

WITH_FLOAT16 = ("local", "replicated", "replicated_update", "data8", "sharded_update")
"""Runtimes that train in float16, with a loss scale that is too large at first."""


def experiment(texts: pathlib.Path, mesh: Params) -> Params:
    """Two epochs of ten steps, dropout, noise; a vocabulary of 259 that no mesh divides."""
    layer = TransformerLayer.params(dropout_rate=0.2)
    layer.attention.num_heads = 4
    data = TextInput.params(batch_size=8, length=8, source=TextFiles.params(pattern=f"{texts}/*"))
    return Experiment.params(
        task=LanguageModeling.params(
            model=LanguageModel.params(dim=16, stack=Repeat.params(layer=layer, num_layers=2))
        ),
        train_input=data,
        eval_inputs={"same": data.copy().set(batch_size=6, repeat=False)},
        optimizer=AdamW.params(learning_rate=3e-3, max_grad_norm=0.5, ema_decay=0.9),
        weight_noise=WeightNoise.params(stddev=0.02, start_step=3),
        runtime=mesh,
        max_steps=NUM_STEPS,
    )


def write_texts(folder: pathlib.Path) -> pathlib.Path:
    """Writes 640 tokens, ends of documents included: ten batches of eight rows of eight."""
    texts, draw = folder / "texts", np.random.RandomState(0)
    texts.mkdir()
    for i, size in enumerate((99, 129, 159, 249)):
        (texts / f"{i}.txt").write_bytes(bytes(draw.randint(97, 107, size).tolist()))
    return texts


def losses(
    experiment: Experiment, program: Program, loops: Sequence[int], step: int = 0
) -> list[float]:
    """Trains so many steps at a time, from a step on; returns the loss of each."""
    found = []
    for num in loops:
        batches = [experiment.train_input.batch(i) for i in range(step, step + num)]
        report = program.train({k: np.stack([b[k] for b in batches]) for k in batches[0]})
        found += np.asarray(report["scalars"]["loss/total"]).tolist()
        step += num
    return found


def five_steps(loops: Sequence[int]) -> list[int]:
    """Returns numbers of steps a call, as the first of some: five steps in all."""
    return [loops[0]] * (5 // loops[0])


def texts(experiment: Experiment, program: Program) -> list[str]:
    """Returns the likeliest continuations of three prompts, a number that no mesh divides."""
    sampling = Sampling.params(max_tokens=5, temperature=0.0).build()
    found = generate(experiment, program, ["a", "bcd", "eee"], sampling)
    return [samples[0].text for samples in found]


def keras_model() -> Any:
    """A model of Keras without dropout and batch normalization; `with_batches` has the latter."""
    layers = keras.layers
    hidden = [layers.Flatten(), layers.Dense(8, activation="gelu"), layers.LayerNormalization()]
    return keras.Sequential([keras.Input((4, 4, 1)), *hidden, layers.Dense(3)])


def with_batches() -> Any:
    return keras.Sequential([keras_model(), keras.layers.BatchNormalization()])


def normalized(mesh: Params, size: int, statistics_over: int | None) -> list[float] | str:
    """Trains a convolution with BatchNorm on images; returns losses and averages, or why not."""
    norm = BatchNorm.params(statistics_over=statistics_over)
    layers = [
        AmoebaNetStem.params(dim=1, output_dim=4, norm=norm),
        AmoebaNetHead.params(dim=4, num_classes=3),
    ]
    return classified(mesh, Chain.params(layers=layers), size)


def classified(
    mesh: Params, model: Params, size: int, *, dtype: Dtype = "float32"
) -> list[float] | str:
    """Trains a model on images, [size, 4, 4, 1]; returns losses and averages, or why not."""
    task = ImageClassification.params(
        model=model, num_classes=3, image_shape=(4, 4, 1), dtype=dtype
    )
    optimizer = Momentum.params(learning_rate=0.1).build()
    learner, draw, num_steps = Learner(task.build(), optimizer), np.random.default_rng(0), 3
    batches = {
        "images": draw.normal(1.0, 1.0, [num_steps, size, 4, 4, 1]).astype("f"),
        "labels": draw.integers(0, 3, [num_steps, size], np.int32),
        "weights": np.ones([num_steps, size], "f"),
        "rows": np.tile(np.arange(size, dtype=np.int32), [num_steps, 1]),
    }
    program = mesh.build().start(learner, initial_state(learner))
    try:
        report = program.train(batches)
    except ParamError as error:
        return str(error)
    averages = [np.ravel(value) for _, value in sorted(program.state().state.items())]
    return np.concatenate([report["scalars"]["loss/total"], *averages]).tolist()


def loaded(experiment: Experiment, program: Program, folder: pathlib.Path) -> dict[str, str]:
    """Returns the digest of every tensor of a checkpoint once a program has it."""
    program.load(restore_state(experiment.learner, store.find(folder, None, of=folder)))
    return digests(experiment, program)


def begun(experiment: Experiment, program: Program, folder: pathlib.Path) -> dict[str, str]:
    """Returns the same once a program has begun with the weights and slots of a checkpoint."""
    learner, source = experiment.learner, WarmStart.params(path=str(folder), slots=True).build()
    warm = source.transfer(weight_shapes(experiment.task), slot_shapes(learner))
    program.load(initial_state(learner, warm.value, warm.slot))
    return digests(experiment, program)


def digests(experiment: Experiment, program: Program) -> dict[str, str]:
    """Returns the digest of every tensor that a program has."""
    return {
        name: digest(np.asarray(v))
        for name, v in named_tensors(experiment.learner, program.state())
    }


def main(folder: pathlib.Path, names: Sequence[str]) -> None:
    """Trains on each runtime, then gives each the checkpoints of all, that of one device last."""
    split_processor(3)
    jax.config.update("jax_num_cpu_devices", 8)
    where, found, programs = write_texts(folder), {}, {}
    for name in names:
        mesh, loops = RUNTIMES[name]
        built = experiment(where, mesh).build()
        program = built.runtime.start(built.learner, initial_state(built.learner))
        programs[name], found[name] = (built, program), {"losses": losses(built, program, loops)}
        tensors = named_tensors(built.learner, program.state())
        store.save(
            folder / name, step=NUM_STEPS, tensors=tensors, metadata={}, retention=Retention(1)
        )
        found[name]["continued"] = losses(built, program, five_steps(loops), NUM_STEPS)
    for name, (built, program) in programs.items():
        found[name] |= {
            "begun": begun(built, program, folder / "local"),
            "loaded": {other: loaded(built, program, folder / other) for other in reversed(found)},
            "metrics": evaluate(built.task, program, built.eval_inputs["same"], weights="ema"),
            "texts": texts(built, program),
            "resumed": losses(built, program, five_steps(RUNTIMES[name][1]), NUM_STEPS),
        }
    for name in [name for name in names if name in NORMALIZING]:
        mesh, _ = RUNTIMES[name]
        found[name]["normalized"] = {
            case: normalized(mesh, *given) for case, given in NORMALIZED.items()
        }
    axes = {".*/dense/kernel": [None, "mlp"], ".*/dense/bias": ["mlp"]}
    for name in [name for name in names if name in WITH_KERAS]:
        models = (Keras.params(factory=keras_model, axes=axes), Keras.params(factory=with_batches))
        found[name]["keras"] = [classified(RUNTIMES[name][0], model, 8) for model in models]
    for name in [name for name in names if name in WITH_FLOAT16]:
        model = Keras.params(factory=keras_model)
        found[name]["float16"] = classified(RUNTIMES[name][0], model, 8, dtype="float16")
    print(json.dumps(found))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
