"""A language model's step and decoding against rivals; what bfloat16, the loop and chunks change.

Everything that is compared takes turns, step by step, in processes of their own (`tools/turns.py`):
on a machine that does something else, too, ratios vary, but no rival has the better hours.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import lingo
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.contract import Checkpointing, Experiment, Summary
from lingo.data.text_input import TextInput
from lingo.decode.sampling import Sampling
from lingo.layers import context
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import Remat
from lingo.learner.state import initial_state
from lingo.optim.adam import AdamW
from lingo.runtimes.local import Local, LocalProgram
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling
from tools.bounds import Bound, Bounds, at_least, at_most
from tools.rivals.plain_lm import PlainTraining, Rates, Size
from tools.turns import Cost, Process, Rival, Spread, Turns, measure, spread

ROUNDS = 12
LOOP_ROUNDS = 5  # of ten steps: one checkpoint among them
LOOP_STEPS = 10
DECODE_ROUNDS = 3
DECODED = (1, 4)  # rows at a time
CHUNK = 32  # positions of a row
WIDE = Size(vocab_size=32768, batch_size=16)  # whose logits are most of a step's memory


class Variant(NamedTuple):
    """How lingo computes the step.

    Attributes:
        xla: whether by XLA.
        dtype: of the computation.
        chunk_size: positions of a row whose logits exist at a time; None: all.
        remat: whether layers keep their inputs only.
    """

    xla: bool = False
    dtype: str = "float32"
    chunk_size: int | None = None
    remat: bool = False


def experiment(size: Size, variant: Variant) -> Params:
    """Returns the model that the rivals have written by hand, on real text."""
    rates = Rates()
    layer: Params = TransformerLayer.params()
    layer.attention.set(num_heads=size.num_heads)
    layer.ffn.set(hidden_dim=size.hidden_dim)
    if variant.remat:
        layer = Remat.params(layer=layer)
    stack = Stack.params(layer=layer, num_layers=size.num_layers)
    return Experiment.params(
        task=LanguageModeling.params(
            vocab_size=size.vocab_size,
            dtype=variant.dtype,
            chunk_size=variant.chunk_size,
            model=LanguageModel.params(dim=size.dim, stack=stack),
        ),
        train_input=TextInput.params(batch_size=size.batch_size, length=size.length),
        optimizer=AdamW.params(
            learning_rate=rates.learning_rate,
            weight_decay=rates.weight_decay,
            max_grad_norm=rates.max_grad_norm,
        ),
        mesh=Local.params(xla=variant.xla),
        summary=Summary.params(every_steps=LOOP_STEPS),
        checkpoint=Checkpointing.params(every_steps=LOOP_ROUNDS * LOOP_STEPS),
        max_steps=1_000_000,
    )


def batch(size: Size) -> dict[str, np.ndarray]:
    """Returns random tokens, two documents a row."""
    shape = [size.batch_size, size.length]
    draw = np.random.default_rng(0)
    position = np.tile(np.arange(size.length, dtype=np.int32), (size.batch_size, 1))
    return {
        "tokens": draw.integers(0, size.vocab_size, shape).astype(np.int32),
        "targets": draw.integers(0, size.vocab_size, shape).astype(np.int32),
        "segments": 1 + (position >= size.length // 2).astype(np.int32),
        "positions": position % (size.length // 2),
        "weights": np.ones(size.batch_size, np.float32),
        "rows": np.arange(size.batch_size, dtype=np.int32),
    }


# ---- rivals --------------------------------------------------------------------------------------


def lingo_steps(turns: Turns, *, size: Size, variant: Variant, num_steps: int = 1) -> None:
    """A turn is a call of the compiled program for each of some steps, nothing else."""
    built = experiment(size, variant).build()
    program = built.mesh.start(built.learner, initial_state(built.learner))
    one = {name: value[None] for name, value in batch(size).items()}
    while True:
        with turns.turn():
            for _ in range(num_steps):
                float(program.train(one)["scalars"]["loss/total"][0])


def lingo_loop(turns: Turns, *, size: Size) -> None:
    """A turn is ten steps of a run: real text, a report, and in every fifth turn a checkpoint."""
    train, done = LocalProgram.train, 0

    def measured(program: LocalProgram, batches: Mapping[str, np.ndarray]) -> Any:
        nonlocal done
        report = train(program, batches)
        done += 1
        if done % LOOP_STEPS == 1:  # what is due after a step is done before the next one ends
            if done > 1:
                turns.end()
            turns.begin()
        return report

    LocalProgram.train = measured
    with (
        tempfile.TemporaryDirectory() as directory,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        lingo.train(experiment(size, Variant()), directory)


def plain_steps(turns: Turns, *, size: Size, xla: bool) -> None:
    """A turn is a step of the model written by hand."""
    training = PlainTraining(size, xla=xla)
    one = {name: tf.constant(value) for name, value in batch(size).items()}
    while True:
        with turns.turn():
            float(training.step(one)[0])


def keras_steps(turns: Turns, *, size: Size, jit_compile: Any) -> None:
    """A turn is a step of Keras' `fit`, without the reading of its data."""
    one = batch(size)
    tf.constant(0)  # imports TensorFlow first, which lingo does quietly
    import keras

    from tools.rivals.keras_lm import fit

    class EachStep(keras.callbacks.Callback):
        """Takes turns."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            turns.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            turns.end()

    fit(size, one, jit_compile=jit_compile, callback=EachStep(), num_steps=1_000_000)


def cached_decoding(turns: Turns, *, size: Size, batch_size: int) -> None:
    """A turn decodes as many tokens as a row has, the likeliest each time."""
    learner = experiment(size, Variant()).build().learner
    program = Local.params().build().start(learner, initial_state(learner))
    sampling = Sampling.params(max_tokens=size.length, temperature=0.0).build()
    prompts = {
        "prefix": np.ones([batch_size, 1], np.int32),
        "rest": np.zeros([batch_size, 0], np.int32),
        "rest_length": np.zeros([batch_size], np.int32),
        "end_id": np.full([batch_size], -1, np.int32),  # never
        "rows": np.arange(batch_size, dtype=np.int32),
    }
    while True:
        with turns.turn():
            program.decode(prompts, sampling)


def prefix_decoding(turns: Turns, *, size: Size, batch_size: int) -> None:
    """The same tokens, each computed from all before it."""
    learner = experiment(size, Variant()).build().learner
    weights = tf.nest.map_structure(tf.constant, initial_state(learner).weights)
    model = learner.task.model

    @tf.function(autograph=False, reduce_retracing=True)
    def following(tokens: tf.Tensor) -> tf.Tensor:
        x, _ = context.apply(model, weights, tokens, method="activations")
        logits, _ = context.apply(model, weights, x[:, -1:], method="logits")
        return tf.concat([tokens, tf.argmax(logits, -1, output_type=tf.int32)], axis=1)

    while True:
        with turns.turn():
            tokens = tf.ones([batch_size, 1], tf.int32)
            for _ in range(size.length):
                tokens = following(tokens)
            tokens.numpy()


# ---- comparisons ---------------------------------------------------------------------------------


def steps(size: Size) -> dict[str, Rival]:
    """Returns all forms of the same training step."""
    mine = functools.partial(lingo_steps, size=size)
    return {
        "lingo": functools.partial(mine, variant=Variant()),
        "lingo, XLA": functools.partial(mine, variant=Variant(xla=True)),
        "lingo, bfloat16": functools.partial(mine, variant=Variant(dtype="bfloat16")),
        "lingo, chunks": functools.partial(mine, variant=Variant(chunk_size=CHUNK)),
        "lingo, chunks and Remat": functools.partial(
            mine, variant=Variant(chunk_size=CHUNK, remat=True)
        ),
        "by hand": functools.partial(plain_steps, size=size, xla=False),
        "by hand, XLA": functools.partial(plain_steps, size=size, xla=True),
        "Keras fit": functools.partial(keras_steps, size=size, jit_compile=False),
        "Keras fit, XLA": functools.partial(keras_steps, size=size, jit_compile=True),
    }


def ratios(ours: Sequence[Cost], theirs: Sequence[Cost], field: str = "seconds") -> Spread:
    """Returns the spread of our cost over theirs in the same round."""
    return spread(
        [getattr(a, field) / getattr(b, field) for a, b in zip(ours, theirs, strict=True)]
    )


def best(costs: Mapping[str, Sequence[Cost]], *names: str) -> str:
    """Returns which of some rivals has the least median time."""
    return min(names, key=lambda name: spread([cost.seconds for cost in costs[name]]).median)


def peak_megabytes(rival: Rival) -> float:
    """Returns the most memory that two turns of a rival take."""
    process = Process(rival)
    try:
        for _ in range(2):
            process.turn()
        return process.peak_megabytes()
    finally:
        process.close()


# ---- the report ----------------------------------------------------------------------------------

_HEAD = f"{'':32}{'least':>8} {'median':>8} {'most':>8}"


def report_steps(size: Size, bounds: Bounds) -> None:
    """Prints what a step costs, and ratios."""
    first, costs = measure(steps(size), num=ROUNDS)
    print(f"\nseconds a step{_HEAD[14:]}   processor seconds, median   first step")
    for name, turns in costs.items():
        cpu = spread([cost.cpu_seconds for cost in turns]).median
        wall = spread([cost.seconds for cost in turns])
        print(f"{name:32}{wall}   {cpu:25.3f}   {first[name].seconds:10.1f}")
    mine = best(costs, "lingo", "lingo, XLA")
    by_hand = best(costs, "by hand", "by hand, XLA")
    keras = best(costs, "Keras fit", "Keras fit, XLA")
    print(f"\nratio{_HEAD[5:]}   of processor seconds   wanted")
    for ours, theirs, wanted in (
        (mine, by_hand, at_most(1.02)),
        ("lingo", by_hand, at_most(1.02)),
        (mine, keras, at_most(1.0)),
        ("lingo, bfloat16", "lingo", at_most(0.62)),
        ("lingo, chunks", "lingo", None),
        ("lingo, chunks and Remat", "lingo", None),
    ):
        report_ratio(f"{ours} / {theirs}", costs[ours], costs[theirs], bounds, wanted)


def report_ratio(
    name: str,
    ours: Sequence[Cost],
    theirs: Sequence[Cost],
    bounds: Bounds,
    wanted: Bound | None = None,
) -> None:
    """Prints the ratio of two rivals' costs; its median is held against what is wanted of it."""
    wall, cpu = (ratios(ours, theirs, field) for field in Cost._fields)
    print(f"{name:32}{wall}   {cpu.median:20.3f}   {wanted or ''}", flush=True)
    bounds.hold(name, wall.median, wanted)


def report_loop(size: Size, bounds: Bounds) -> None:
    """Prints what a run costs beside its steps."""
    rivals = {
        "loop": functools.partial(lingo_loop, size=size),
        "step": functools.partial(lingo_steps, size=size, variant=Variant(), num_steps=LOOP_STEPS),
    }
    costs = measure(rivals, num=LOOP_ROUNDS).rounds
    report_ratio("loop / step, ten of each", costs["loop"], costs["step"], bounds, at_most(1.03))
    loop, step = ([Cost(*map(sum, zip(*turns, strict=True)))] for turns in costs.values())
    report_ratio("  fifty, with a checkpoint", loop, step, bounds, at_most(1.03))


def report_decoding(size: Size, bounds: Bounds) -> None:
    """Prints how many times faster decoding is with caches."""
    for batch_size in DECODED:
        rivals = {
            "prefix": functools.partial(prefix_decoding, size=size, batch_size=batch_size),
            "cached": functools.partial(cached_decoding, size=size, batch_size=batch_size),
        }
        costs = measure(rivals, num=DECODE_ROUNDS).rounds
        name = f"prefix / caches, {batch_size} x {size.length}"
        report_ratio(name, costs["prefix"], costs["cached"], bounds, at_least(5))


def report_memory(size: Size) -> None:
    """Prints the peak memory of processes that train."""
    tokens = size.batch_size * size.length
    name = f"peak memory, {tokens} tokens, V {size.vocab_size}"
    print(f"\n{name:35} MB")
    for name, variant in {
        "all at once": Variant(),
        f"chunks of {CHUNK} positions": Variant(chunk_size=CHUNK),
        "Remat": Variant(remat=True),
        "chunks and Remat": Variant(chunk_size=CHUNK, remat=True),
    }.items():
        rival = functools.partial(lingo_steps, size=size, variant=variant)
        print(f"{name:32}{peak_megabytes(rival):6.0f}", flush=True)


def main() -> int:
    """Prints everything; returns the exit code."""
    size, bounds = Size(), Bounds()
    print(size, f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors at the beginning")
    report_steps(size, bounds)
    report_loop(size, bounds)
    report_decoding(size, bounds)
    report_memory(size)
    report_memory(WIDE)
    print(f"load {os.getloadavg()[0]:.1f} at the end")
    return bounds.exit_code()
