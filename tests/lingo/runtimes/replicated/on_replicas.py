"""Trains small learners on replicas and on one device; `test_replicated.py` runs it.

    python on_replicas.py RUNTIMES                   three virtual devices against one
    TF_CONFIG=... python on_replicas.py RUNTIMES     one of several workers

RUNTIMES are those of language models, which take longest: `replicated`, `chunks`.

It prints what was computed as JSON. A process of its own, because TensorFlow chooses its devices
once a process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.data.prompt import Prompt
from lingo.decode.sampling import Sampling
from lingo.decode.text import prompt_batch
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.wrap.remat import Remat
from lingo.learner.state import Learner, TrainState, initial_state
from lingo.learner.task import Task
from lingo.optim.adagrad import Adagrad
from lingo.optim.adam import AdamW
from lingo.runtimes.devices import split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.program import Program, ProgramError
from lingo.runtimes.replicated.replicated import Replicated
from lingo.storage.shards import Shards
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling
from tests.lingo.runtimes.replicated.on_groups import distances

T, V = 5, 11
LOOPS = (1, 3, 2)
"""Steps of each call of a program."""

CHUNKS = Replicated.params(shard_update=True)


class TwoTerms(Task):
    """Squared error an example, and absolute error a label: two terms of different denominators."""

    def setup(self) -> None:
        self.w = self.weight("w", [3, 2], axes=("embed", "mlp"))

    def loss_denominators(self, batch: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        return {
            "examples": tf.reduce_sum(batch["weights"]),
            "labels": tf.reduce_sum(batch["labeled"] * batch["weights"]),
        }

    def loss(self, batch: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        error = tf.einsum("bi,io->bo", batch["x"], self.w) - batch["y"]
        labels = batch["labeled"] * batch["weights"]
        return {
            "examples": tf.reduce_sum(tf.reduce_sum(error**2, -1) * batch["weights"]),
            "labels": tf.reduce_sum(tf.abs(error[:, 0]) * labels),
        }


class LookedUp(Task):
    """Squared error of vectors from a sparse table, of which examples share some rows."""

    def setup(self) -> None:
        self.table = self.weight("table", [9, 2], axes=("vocab", "embed"), sparse=True)

    def loss(self, batch: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        error = self.look_up("table", batch["rows"] % 5) - batch["y"] * batch["x"][:, :1]
        return {"examples": tf.reduce_sum(tf.reduce_sum(error**2, -1) * batch["weights"])}


def two_terms(step: int, rows: slice = slice(None), size: int = 7) -> dict[str, np.ndarray]:
    """Returns the examples of a step; that of step 4 has one that is not finite."""
    draw = np.random.RandomState(step)
    batch = {
        "x": draw.randn(size, 3).astype("f"),
        "y": draw.randn(size, 2).astype("f"),
        "labeled": (draw.rand(size) < 0.5).astype("f"),
        "weights": (np.arange(size) != 2).astype("f"),
        "rows": np.arange(size, dtype="i"),
    }
    if step == 4:
        batch["x"][5] = np.nan
    return {name: array[rows] for name, array in batch.items()}


def texts(step: int, rows: slice = slice(None), size: int = 8) -> dict[str, np.ndarray]:
    """Returns the examples of a step; texts of unequal lengths."""
    draw = np.random.RandomState(step)
    batch = {
        "tokens": draw.randint(0, V, (size, T)).astype("i"),
        "targets": draw.randint(0, V, (size, T)).astype("i"),
        "segments": (np.arange(T) < draw.randint(1, T + 1, (size, 1))).astype("i"),
        "positions": np.tile(np.arange(T, dtype="i"), (size, 1)),
        "weights": np.ones(size, "f"),
        "rows": np.arange(size, dtype="i"),
    }
    return {name: array[rows] for name, array in batch.items()}


def language_model() -> Params:
    layer = TransformerLayer.params(dropout_rate=0.3, attention=Attention.params(num_heads=2))
    stack = Repeat.params(layer=Remat.params(layer=layer), num_layers=2)
    return LanguageModeling.params(vocab_size=V, model=LanguageModel.params(dim=4, stack=stack))


def pipeline() -> Params:
    """Returns the same in two stages and four micro-batches."""
    task = language_model()
    task.all(Repeat).swap(Pipeline, num_stages=2, num_micro_batches=4)
    return task


def learner(task: Params, **kwargs: Any) -> Learner:
    optimizer = AdamW.params(learning_rate=0.1, max_grad_norm=0.5, ema_decay=0.5, ema_warmup=True)
    return Learner(task.build(), optimizer.build(), seed=1, **kwargs)


def flat(state: TrainState) -> list[list[float]]:
    """Returns all elements of a state; NaN for those that another process saves."""
    return [np.ravel(own_elements(value)).tolist() for value in tf.nest.flatten(state)]


def own_elements(value: Any) -> np.ndarray:
    if not isinstance(value, Shards):
        return np.asarray(value)
    own = np.full(value.shape, np.nan, np.float32)
    for index, elements in value.shards:
        own[index] = elements
    return own


def started(mesh: Params, learner: Learner, batch: Any) -> Program:
    program = mesh.build().start(learner, initial_state(learner))
    specs = {k: (v.shape, str(v.dtype)) for k, v in batch(0).items()}
    program.compile(specs, num_steps=1)
    return program


def trained(program: Program, batch: Any) -> dict[str, Any]:
    """Returns what some steps report, the state after them, and metrics of a batch."""
    reports, step = [], 0
    rows = program.example_slice(len(batch(0)["rows"]))
    for num in LOOPS:
        some = [batch(i, rows) for i in range(step, step + num)]
        report = program.train({k: np.stack([b[k] for b in some]) for k in some[0]})
        reports.append(tf.nest.map_structure(np.asarray, report))
        step += num
    together = tf.nest.map_structure(lambda *parts: np.concatenate(parts).tolist(), *reports)
    metrics = {
        weights: tf.nest.map_structure(float, program.evaluate(batch(9, rows), weights=weights))
        for weights in ("trained", "ema")
    }
    return {"report": together, "state": flat(program.state()), "metrics": metrics}


def continued(program: Program) -> dict[str, Any]:
    """Returns continuations of four prompts, and of one, which not all replicas can share."""
    sampling = Sampling.params(max_tokens=4, num_samples=2).build()
    prompts = [Prompt(np.arange(1, 2 + i, dtype="i")) for i in range(4)]
    found = {}
    for num in (4, 1):
        batch = prompt_batch(prompts[:num], rows=list(range(num)), end_id=0)
        own = {name: array[program.example_slice(num)] for name, array in batch.items()}
        decoded = program.decode(own, sampling, seed=3, weights="ema")
        found[str(num)] = {name: value.tolist() for name, value in decoded.items()}
    return found


def predicted(program: Program, num_examples: int) -> dict[str, Any]:
    """Returns predictions for the first examples of a batch, some of which are padding."""
    own = texts(0, program.example_slice(num_examples), num_examples)
    found = program.predict(own, weights="ema")
    return {name: value.tolist() for name, value in found.items()}


def state_alone(program: Program) -> str:
    """Returns why a process cannot return the whole state without the others."""
    try:
        program.state(alone=True)
    except ProgramError as error:
        return str(error)
    return ""


def copies(program: Any) -> list[list[bytes]]:
    return [[copy.numpy().tobytes() for copy in one] for one in program._copies()]


def taken_back(program: Any) -> bool:
    """Returns whether a loop of steps that fails after some leaves the state as it was."""
    before, train = flat(program.state()), program._train

    def fails(fed: Any) -> None:
        train(fed)
        raise tf.errors.UnavailableError(None, None, "lost")

    program._train = fails
    some = [two_terms(i) for i in range(2)]
    try:
        program.train({k: np.stack([b[k] for b in some]) for k in some[0]})
    except tf.errors.UnavailableError:
        return flat(program.state()) == before
    return False


def collectives(program: Any) -> int:
    """Returns how many sums over replicas the graph of a step has."""
    (trace,) = program._train._list_all_concrete_functions()
    functions = trace.graph.as_graph_def().library.function
    counts = [sum(n.op == "CollectiveReduceV2" for n in f.node_def) for f in functions]
    return max(counts)


def on_virtual_devices(with_texts: Sequence[str]) -> dict[str, Any]:
    """Three replicas against one device."""
    split_processor(3)
    found: dict[str, Any] = {}
    meshes = {
        "local": Local.params(),
        "replicated": Replicated.params(),
        "xla": Replicated.params(xla=True),
        "chunks": CHUNKS,
    }
    for name, mesh in meshes.items():
        program = started(mesh, one(), two_terms)
        found[f"two_terms/{name}"] = trained(program, two_terms)
        if name == "replicated":
            found["copies"] = [len(set(some)) for some in copies(program)]
            found["num_copies"] = [len(some) for some in copies(program)]
            found["collectives"] = collectives(program)
            found["taken_back"] = taken_back(program)
    rule = Adagrad.params(learning_rate=0.1, max_grad_norm=0.5).build()
    for name in ("local", "replicated", "xla"):
        program = started(meshes[name], Learner(LookedUp.params().build(), rule), two_terms)
        batches = [two_terms(i) for i in range(6)]
        program.train({k: np.stack([batch[k] for batch in batches]) for k in batches[0]})
        found[f"looked_up/{name}"] = flat(program.state())
    text = learner(language_model())
    staged = learner(pipeline(), accumulation_steps=2)
    programs = {}
    for name in ("local", *with_texts):
        program = started(meshes[name], text, texts)
        found[f"decoded/{name}"] = continued(program)
        found[f"predicted/{name}"] = [predicted(program, num) for num in (8, 2)]
        programs[name] = started(meshes[name], staged, texts)
    many, before = programs["replicated"], programs["replicated"].state()
    first = flat(before)
    for name, program in programs.items():
        found[f"stages/{name}"] = trained(program, texts)
    found["kept"] = flat(before) == first
    many.load(programs["local"].state())
    found["loaded"] = flat(many.state()) == flat(programs["local"].state())
    specs = {k: (v.shape, str(v.dtype)) for k, v in texts(0).items()}
    found["graph"] = len(many.graph(specs).get_operations())
    return found


def one() -> Learner:
    return learner(TwoTerms.params())


def on_workers(with_texts: Sequence[str]) -> dict[str, Any]:
    """What this worker knows of two that share 7 rows; the second has none of a single prompt."""
    mesh = Replicated.params().build()
    with mesh.join() as processes:
        program = started(Replicated.params(), one(), two_terms)
        found = {
            "two_terms": trained(program, two_terms),
            "rows": [program.example_slice(7).start, program.example_slice(7).stop],
            "any": [processes.any(processes.index == 1), processes.any(False)],
            "shared": processes.share("word", "hello" if processes.is_leader else None),
            "distances": distances(Replicated.params(), 8),
        }
        for name in with_texts:
            runtime = CHUNKS if name == "chunks" else Replicated.params()
            text = started(runtime, learner(language_model()), texts)
            found[f"decoded/{name}"] = continued(text)
            found[f"predicted/{name}"] = [predicted(text, num) for num in (7, 1)]
        chunks = started(CHUNKS, one(), two_terms)
        return found | {"chunks": trained(chunks, two_terms), "alone": state_alone(chunks)}


if __name__ == "__main__":
    compute = on_workers if "TF_CONFIG" in os.environ else on_virtual_devices
    print(json.dumps(compute(sys.argv[1:])))
