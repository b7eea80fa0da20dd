"""Attention by blocks against attention with all logits: time and peak memory of both passes.

A turn is the result, and the gradients of queries, keys and values. The memory is that above what
the process had before its first turn: compilation is included.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.ops.attention import attend
from lingo.ops.blockwise_attention import Band, Logits, attend_blockwise
from tools.harness import Process, Report, Turns, at_most, choose, measure

ROUNDS = choose(7, small=1)
MOST_TIME = at_most(1.15)
MOST_MEMORY = at_most(1 / 3)


class Size(NamedTuple):
    """The size of what is computed."""

    rows: int = 1  # examples
    num_heads: int = 4  # of queries, and of keys
    length: int = 4096  # positions
    head_dim: int = 64  # width of a head


SIZE = choose(Size(), small=Size(num_heads=2, length=1024, head_dim=8))
CASES = choose(  # causal; by XLA
    [(True, False), (True, True), (False, False), (False, True)],
    small=[(True, False), (False, True)],
)


def gradients(turns: Turns, *, size: Size, causal: bool, xla: bool, blockwise: bool) -> None:
    """The first turn does nothing; each further one is a forward and a backward pass."""
    positions = tf.range(size.length)
    logits = Logits(band=Band(num_after=0 if causal else None))

    @tf.function(autograph=False, jit_compile=xla)
    def compute(upward: Any, *tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            if blockwise:
                y = attend_blockwise(*tensors, logits=logits, compiled=xla)
            else:
                mask = positions[None] <= positions[:, None]
                y = attend(*tensors, mask=mask[None, None] if causal else None)
        return [y, *tape.gradient(y, list(tensors), output_gradients=[upward])]

    draw = np.random.default_rng(0)
    shape = [size.rows, size.num_heads, size.length, size.head_dim]
    tensors = [tf.constant(draw.standard_normal(shape, np.float32)) for _ in range(4)]
    tensors[1] *= size.head_dim**-0.5
    with turns.turn():
        pass
    while True:
        with turns.turn():
            compute(*tensors)[0].numpy()


def peak_megabytes(**fields: Any) -> float:
    """Returns the most memory that two turns need."""
    with contextlib.closing(Process(functools.partial(gradients, **fields))) as process:
        process.turn()
        process.reset_peak()
        before = process.peak_megabytes()
        for _ in range(2):
            process.turn()
        return process.peak_megabytes() - before


def compare(size: Size, report: Report, *, causal: bool, xla: bool) -> None:
    """Compares the two forms of one computation."""
    fields: dict[str, Any] = {"size": size, "causal": causal, "xla": xla}
    title = f"{'causal' if causal else 'bidirectional'}{', XLA' if xla else ''}"
    forms = {"blocks": True, "whole": False}
    rivals = {
        name: functools.partial(gradients, **fields, blockwise=form) for name, form in forms.items()
    }
    measured = measure(rivals, num=ROUNDS + 1)
    costs = {name: turns[1:] for name, turns in measured.rounds.items()}  # without compilation
    report.table(title, "of processor seconds")
    report.ratio(f"time, blocks / whole, {title}", costs["blocks"], costs["whole"], MOST_TIME)
    peak = {name: peak_megabytes(**fields, blockwise=form) for name, form in forms.items()}
    note = f"{peak['blocks']:.0f} / {peak['whole']:.0f} MB"
    ratio = peak["blocks"] / peak["whole"]
    report.line(f"memory, blocks / whole, {title}", ratio, MOST_MEMORY, note=note)


def run(report: Report) -> None:
    """Compares causal and bidirectional attention, without XLA and with it."""
    print(SIZE)
    for causal, xla in CASES:
        compare(SIZE, report, causal=causal, xla=xla)
