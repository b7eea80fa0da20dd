"""Predictions against the bare forward pass, and their memory for an input ten times as large.

The bare pass is a `tf.function` of the same predictions with the same weights, called on the arrays
of one batch that is ready; lingo makes each batch, calls its program and leaves padding out. They
take turns, a few batches each. Two processes stream the two inputs, one after the other.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.contract import Experiment
from lingo.data.text_input import TextInput
from lingo.learner.state import initial_state, load_arrays
from lingo.learner.step import predict_batch
from lingo.runtimes.program import Program
from lingo.trainer.evaluation.predict import convert_arrays, predict_arrays, predict_input
from tools.bench import lm
from tools.harness import Process, Report, Rival, Turns, at_least, at_most, choose, measure, spread
from tools.rivals.plain_lm import Size

ROUNDS = choose(6, small=1)
NUM_BATCHES = choose(3, small=1)  # of a turn
INPUT_BATCHES = choose(20, small=1)  # of the smaller input
TIMES = choose(10, small=2)  # by which the other one is larger
SMALL = Size(dim=64, num_layers=1, num_heads=2, hidden_dim=128, vocab_size=512, batch_size=32)
READ = ("tokens", "segments", "positions")


def start(size: Size) -> tuple[Experiment, Program]:
    """Returns an experiment and its program, with weights as they are drawn."""
    built = lm.experiment(size, lm.Variant()).build()
    return built, built.runtime.start(built.learner, initial_state(built.learner))


def batch(size: Size) -> dict[str, np.ndarray]:
    """Returns a batch with all that a prediction reads."""
    arrays = lm.batch(size)
    return {name: arrays[name] for name in (*READ, "weights", "rows")}


def bare_pass(turns: Turns, *, size: Size) -> None:
    """A turn computes a batch so many times, in a function of its weights, without a runtime."""
    built, _ = start(size)
    state = tf.nest.map_structure(tf.constant, load_arrays(initial_state(built.learner)))

    @functools.partial(tf.function, autograph=False)
    def forward(batch: Any) -> Any:
        return predict_batch(built.task, state.weights, state.state, batch)

    arrays = {name: tf.constant(value) for name, value in batch(size).items()}
    while True:
        with turns.turn():
            for _ in range(NUM_BATCHES):
                tf.nest.map_structure(np.asarray, forward(arrays))


def of_arrays(turns: Turns, *, size: Size) -> None:
    """A turn predicts so many batches of arrays."""
    built, program = start(size)
    given = {name: array for name, array in batch(size).items() if name in READ}
    arrays = {name: np.concatenate([array] * NUM_BATCHES) for name, array in given.items()}
    while True:
        with turns.turn():
            converted = convert_arrays(built, arrays)
            for _ in predict_arrays(built, program, converted, batch_size=size.batch_size):
                pass


def of_input(turns: Turns, *, size: Size, num_batches: int = NUM_BATCHES) -> None:
    """A turn predicts so many batches of real text."""
    built, program = start(size)
    data = TextInput.params(
        batch_size=size.batch_size, length=size.length, repeat=False, max_batches=num_batches
    ).build()
    data.prepare()
    while True:
        with turns.turn():
            for _ in predict_input(built, program, data):
                pass


def compare_rates(size: Size, report: Report) -> None:
    """Compares batches per second with those of the bare forward pass."""
    rivals: dict[str, Rival] = {
        "bare": functools.partial(bare_pass, size=size),
        "arrays": functools.partial(of_arrays, size=size),
        "input": functools.partial(of_input, size=size),
    }
    measured = measure(rivals, num=ROUNDS)
    print(f"\n{size}")
    report.times(f"{NUM_BATCHES} batches", measured)
    costs = measured.rounds
    report.table("rate / bare forward pass")
    for name in ("arrays", "input"):
        pairs = zip(costs["bare"], costs[name], strict=True)
        report.line(name, spread([a.seconds / b.seconds for a, b in pairs]), at_least(0.9))


def compare_memory(size: Size, report: Report) -> None:
    """Compares peak memory for an input with that for one that is ten times as large."""
    peaks = {num: peak_megabytes(size, num) for num in (INPUT_BATCHES, TIMES * INPUT_BATCHES)}
    least, most = peaks.values()
    report.table("peak memory", "MB")
    report.line(
        f"{TIMES} times the input / the input", most / least, at_most(1.1), note=f"{most:6.0f}"
    )


def peak_megabytes(size: Size, num_batches: int) -> float:
    """Returns the peak memory of a process that streams so many batches."""
    process = Process(functools.partial(of_input, size=size, num_batches=num_batches))
    try:
        process.turn()
        return process.peak_megabytes()
    finally:
        process.close()


def run(report: Report) -> None:
    """Compares rates, then memory."""
    compare_rates(lm.SIZE, report)
    compare_memory(SMALL, report)
