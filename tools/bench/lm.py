"""A language model against rivals: its step, its decoding, and what bfloat16 and chunks change."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import lingo
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.contract import Checkpointing, Experiment, Summary
from lingo.data.document_input import TextInput
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
from tools.harness import (
    Cost,
    Process,
    Report,
    Rival,
    Turns,
    at_least,
    at_most,
    choose,
    measure,
    spread,
)
from tools.rivals.plain_lm import PlainTraining, Rates, Size

ROUNDS = choose(12, small=1)
LOOP_ROUNDS = choose(5, small=1)  # of ten steps: one checkpoint among them
LOOP_STEPS = choose(10, small=2)
DECODE_ROUNDS = choose(3, small=1)
DECODE_ROWS = choose((1, 4), small=(2,))  # at a time
CHUNK = choose(32, small=4)  # positions of a row
TINY = Size(dim=8, num_layers=1, num_heads=2, hidden_dim=16, vocab_size=300, length=8, batch_size=2)
SIZE = choose(Size(), small=TINY)
WIDE = choose(  # logits take most of the memory of its step
    Size(vocab_size=32768, batch_size=16), small=TINY._replace(vocab_size=512)
)


class Variant(NamedTuple):
    """How lingo computes the step."""

    xla: bool = False  # whether by XLA
    dtype: str = "float32"  # of the computation
    chunk_size: int | None = None  # positions of a row whose logits exist at a time; None: all
    remat: bool = False  # whether layers keep their inputs only


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
        runtime=Local.params(xla=variant.xla),
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


def train_steps(
    turns: Turns, *, make: Callable[[], Params], size: Size, num_steps: int = 1
) -> None:
    """A turn calls the compiled program for each of some steps, nothing else."""
    built = make().build()
    program = built.runtime.start(built.learner, initial_state(built.learner))
    batches = {name: value[None] for name, value in batch(size).items()}
    while True:
        with turns.turn():
            for _ in range(num_steps):
                float(program.train(batches)["scalars"]["loss/total"][0])


def lingo_steps(size: Size, variant: Variant, num_steps: int = 1) -> Rival:
    """Returns the rival that trains the model with lingo."""
    make = functools.partial(experiment, size, variant)
    return functools.partial(train_steps, make=make, size=size, num_steps=num_steps)


def lingo_loop(turns: Turns, *, size: Size) -> None:
    """A turn is ten steps of a run: real text, a report, and in every fifth turn a checkpoint."""
    train, done = LocalProgram.train, 0

    def train_in_turns(program: LocalProgram, batches: Mapping[str, np.ndarray]) -> Any:
        nonlocal done
        report = train(program, batches)
        done += 1
        if done % LOOP_STEPS == 1:  # what is due after a step is done before the next one ends
            if done > 1:
                turns.end()
            turns.begin()
        return report

    program_class: Any = LocalProgram
    program_class.train = train_in_turns
    with (
        tempfile.TemporaryDirectory() as directory,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        lingo.train(experiment(size, Variant()), directory)


def plain_steps(turns: Turns, *, size: Size, xla: bool) -> None:
    """A turn is a step of the model written by hand."""
    training = PlainTraining(size, xla=xla)
    tensors = {name: tf.constant(value) for name, value in batch(size).items()}
    while True:
        with turns.turn():
            float(training.step(tensors)[0])


def keras_steps(turns: Turns, *, size: Size, jit_compile: Any) -> None:
    """A turn is a step of Keras' `fit`, without the reading of its data."""
    arrays = batch(size)
    tf.constant(0)  # imports TensorFlow first, which lingo does quietly
    import keras

    from tools.rivals.keras_lm import fit

    class EachStep(keras.callbacks.Callback):
        """Takes turns."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            turns.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            turns.end()

    fit(size, arrays, jit_compile=jit_compile, callback=EachStep(), num_steps=1_000_000)


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
    def append_token(tokens: tf.Tensor) -> tf.Tensor:
        x, _ = context.apply(model, weights, tokens, method="activations")
        logits, _ = context.apply(model, weights, x[:, -1:], method="logits")
        return tf.concat([tokens, tf.argmax(logits, -1, output_type=tf.int32)], axis=1)

    while True:
        with turns.turn():
            tokens = tf.ones([batch_size, 1], tf.int32)
            for _ in range(size.length):
                tokens = append_token(tokens)
            tokens.numpy()


# ---- comparisons ---------------------------------------------------------------------------------


def rivals(size: Size) -> dict[str, Rival]:
    """Returns all forms of the same training step, by name; few of them in the small form."""
    found: dict[str, Rival] = {
        "lingo": lingo_steps(size, Variant()),
        "lingo, XLA": lingo_steps(size, Variant(xla=True)),
        "lingo, bfloat16": lingo_steps(size, Variant(dtype="bfloat16")),
        "lingo, chunks": lingo_steps(size, Variant(chunk_size=CHUNK)),
        "lingo, chunks and Remat": lingo_steps(size, Variant(chunk_size=CHUNK, remat=True)),
        "by hand": functools.partial(plain_steps, size=size, xla=False),
        "by hand, XLA": functools.partial(plain_steps, size=size, xla=True),
        "Keras fit": functools.partial(keras_steps, size=size, jit_compile=False),
        "Keras fit, XLA": functools.partial(keras_steps, size=size, jit_compile=True),
    }
    few = ("lingo", "lingo, chunks and Remat", "by hand", "Keras fit")
    return choose(found, small={name: found[name] for name in few})


def fastest(costs: Mapping[str, Sequence[Cost]], *names: str) -> str:
    """Returns which of some rivals has the least median time, among those that were measured."""
    measured = [name for name in names if name in costs]
    return min(measured, key=lambda name: spread([cost.seconds for cost in costs[name]]).median)


def compare_steps(size: Size, report: Report) -> None:
    """Compares steps with each other, with those by hand, and with Keras."""
    measured = measure(rivals(size), num=ROUNDS)
    report.times("a step", measured)
    costs = measured.rounds
    mine = fastest(costs, "lingo", "lingo, XLA")
    by_hand = fastest(costs, "by hand", "by hand, XLA")
    keras = fastest(costs, "Keras fit", "Keras fit, XLA")
    report.table("ratio of steps", "of processor seconds")
    for ours, theirs, wanted in (
        (mine, by_hand, at_most(1.02)),
        ("lingo", by_hand, at_most(1.02)),
        (mine, keras, at_most(1.0)),
        ("lingo, bfloat16", "lingo", at_most(0.62)),
        ("lingo, chunks", "lingo", None),
        ("lingo, chunks and Remat", "lingo", None),
    ):
        if ours in costs:
            report.ratio(f"{ours} / {theirs}", costs[ours], costs[theirs], wanted)


def compare_loop(size: Size, report: Report) -> None:
    """Compares a run, with input, reports and a checkpoint, with its steps alone."""
    sides = {
        "loop": functools.partial(lingo_loop, size=size),
        "step": lingo_steps(size, Variant(), LOOP_STEPS),
    }
    costs = measure(sides, num=LOOP_ROUNDS).rounds
    report.ratio("loop / step, ten of each", costs["loop"], costs["step"], at_most(1.03))
    loop, step = ([Cost(*map(sum, zip(*turns, strict=True)))] for turns in costs.values())
    report.ratio("  fifty, with a checkpoint", loop, step, at_most(1.03))


def compare_decoding(size: Size, report: Report) -> None:
    """Compares decoding without caches with decoding with them."""
    for num in DECODE_ROWS:
        sides = {
            "prefix": functools.partial(prefix_decoding, size=size, batch_size=num),
            "cached": functools.partial(cached_decoding, size=size, batch_size=num),
        }
        costs = measure(sides, num=DECODE_ROUNDS).rounds
        name = f"prefix / caches, {num} x {size.length}"
        report.ratio(name, costs["prefix"], costs["cached"], at_least(5))


def compare_memory(size: Size, report: Report) -> None:
    """Prints the peak memory of processes that train, in two turns."""
    report.table(f"peak MB, {size.batch_size * size.length} tokens, V {size.vocab_size}")
    variants = {
        "all at once": Variant(),
        f"chunks of {CHUNK} positions": Variant(chunk_size=CHUNK),
        "Remat": Variant(remat=True),
        "chunks and Remat": Variant(chunk_size=CHUNK, remat=True),
    }
    for name, variant in choose(variants, small={"all at once": Variant()}).items():
        with contextlib.closing(Process(lingo_steps(size, variant))) as process:
            for _ in range(2):
                process.turn()
            report.line(name, process.peak_megabytes())


def run(report: Report) -> None:
    """Compares everything."""
    print(SIZE)
    compare_steps(SIZE, report)
    compare_loop(SIZE, report)
    compare_decoding(SIZE, report)
    compare_memory(SIZE, report)
    compare_memory(WIDE, report)
