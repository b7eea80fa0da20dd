"""Parameter objects against Fiddle's own tools, on the same tree of 1,001 nodes, in turns.

It compares JSON out and in, the difference of two trees, flat text, and setting a field of all
nodes of a class. The resolved text, for which Fiddle has no counterpart, is timed alone.
"""

from __future__ import annotations

import functools
import statistics
import time
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fiddle as fdl
from fiddle import printing, selectors
from fiddle._src import diffing
from fiddle.experimental import serialization

from lingo.config import serial, text
from lingo.config.node.tree import nodes
from lingo.config.params import Configurable, Params
from lingo.config.roots import roots
from tools.harness import Bound, Report, alternate, at_least, choose, ratios

NUM_BLOCKS = choose(200, small=2)  # of five nodes each, and the root
NUM_TURNS = choose(5, small=1)
CALLS_PER_TURN = choose(21, small=1)  # of lingo, to one of Fiddle


class Norm(Configurable, interface=True):
    """Two fields."""

    dim: int  # width of the input
    epsilon: float = 1e-6  # added to the variance


class Attention(Configurable, interface=True):
    """Three fields."""

    dim: int  # width of the input
    num_heads: int = 8  # heads
    dropout_rate: float = 0.0  # of the weights


class FeedForward(Configurable, interface=True):
    """Four fields, one a template."""

    dim: int  # width of the input
    hidden_dim: int | None = None  # None: 4 * dim
    activation: str = "relu"  # between the layers
    norm: Norm = Norm  # before them

    def setup(self) -> None:
        self.p.norm.build(dim=self.p.dim)


class Block(Configurable, interface=True):
    """Four fields, three of them templates."""

    dim: int  # width of the input
    attention: Attention = Attention  # first half
    feed_forward: FeedForward = FeedForward  # second half
    norm: Norm = Norm  # before the first half

    def setup(self) -> None:
        for child in (self.p.attention, self.p.feed_forward, self.p.norm):
            child.build(dim=self.p.dim)


class Model(Configurable, interface=True):
    """A list of blocks."""

    dim: int = 512  # width
    layers: list[Block]  # one after the other

    def setup(self) -> None:
        for layer in self.p.layers:
            layer.build(dim=self.p.dim)


def fiddle_norm(dim: Any = None, epsilon: float = 1e-6) -> None:
    """`Norm` for Fiddle."""


def fiddle_attention(dim: Any = None, num_heads: int = 8, dropout_rate: float = 0.0) -> None:
    """`Attention` for Fiddle."""


def fiddle_feed_forward(
    dim: Any = None, hidden_dim: Any = None, activation: str = "relu", norm: Any = None
) -> None:
    """`FeedForward` for Fiddle."""


def fiddle_block(
    dim: Any = None, attention: Any = None, feed_forward: Any = None, norm: Any = None
) -> None:
    """`Block` for Fiddle."""


def fiddle_whole(dim: int = 512, layers: Any = None) -> None:
    """`Model` for Fiddle."""


def model() -> Params:
    """Returns the tree, with a value of each node set."""
    return Model.params(
        layers=[
            Block.params(
                attention=Attention.params(num_heads=4),
                feed_forward=FeedForward.params(hidden_dim=64 + i, norm=Norm.params(epsilon=1e-5)),
                norm=Norm.params(epsilon=1e-5),
            )
            for i in range(NUM_BLOCKS)
        ]
    )


def fiddle_model() -> fdl.Config:
    """Returns the same tree for Fiddle."""
    norm = functools.partial(fdl.Config, fiddle_norm, epsilon=1e-5)
    blocks = [
        fdl.Config(
            fiddle_block,
            attention=fdl.Config(fiddle_attention, num_heads=4),
            feed_forward=fdl.Config(fiddle_feed_forward, hidden_dim=64 + i, norm=norm()),
            norm=norm(),
        )
        for i in range(NUM_BLOCKS)
    ]
    return fdl.Config(fiddle_whole, layers=blocks)


def seconds(function: Callable[[], Any], repeats: int = 1) -> float:
    """Returns the median processor time of a call, without garbage collection, as `timeit` does."""
    timer = timeit.Timer(function, timer=time.process_time)
    return statistics.median(timer.repeat(repeats, number=1))


Times = Mapping[str, list[float]]


def measure(ours: Callable[[], Any], theirs: Callable[[], Any]) -> Times:
    """Returns the times of both, turn by turn: the same machine is not always as fast."""
    sides = {"lingo": lambda: seconds(ours, CALLS_PER_TURN), "Fiddle": lambda: seconds(theirs)}
    return alternate(sides, num=NUM_TURNS)


def run(report: Report) -> None:
    """Measures everything that Fiddle can do, too, and the resolved text."""
    places = roots.find()
    tools = {"tools": (Path(__file__).parents[1],)}  # where the classes above are
    places = places._replace(packages=places.packages | tools)
    mine, theirs = model(), fiddle_model()
    my_other, their_other = model(), fiddle_model()
    my_other.all(Attention).set(dropout_rate=0.1)
    selectors.select(their_other, fiddle_attention).set(dropout_rate=0.1)

    def show(name: str, times: Times, wanted: Bound | None = None) -> None:
        lingo, fiddle = (1e3 * statistics.median(side) for side in times.values())
        faster = ratios(times["Fiddle"], times["lingo"])
        report.line(f"{name}, times faster", faster, wanted, note=f"{lingo:8.1f} {fiddle:10.0f}")

    def dump() -> str:
        return serial.dump(mine, serial.Origin(), "", places)

    report.table(f"{len(nodes(mine))} nodes", "lingo ms  Fiddle ms")
    my_json, their_json = dump(), serialization.dump_json(theirs)
    out = measure(dump, lambda: serialization.dump_json(theirs))
    back = measure(
        lambda: serial.load(my_json, roots=places), lambda: serialization.load_json(their_json)
    )
    both = {name: [a + b for a, b in zip(out[name], back[name], strict=True)] for name in out}
    show("JSON", both, at_least(50))
    show("JSON out", out)
    show("JSON in", back)
    show(
        "difference",
        measure(
            lambda: text.diff(text.flatten(mine), text.flatten(my_other)),
            lambda: diffing.build_diff(theirs, their_other),
        ),
        at_least(100),
    )
    show(
        "flat text",
        measure(lambda: text.render(text.flatten(mine)), lambda: printing.as_str_flattened(theirs)),
        at_least(10),
    )
    show(
        "selection",
        measure(
            lambda: mine.all(Attention).set(dropout_rate=0.1),
            lambda: selectors.select(theirs, fiddle_attention).set(dropout_rate=0.1),
        ),
        at_least(10),
    )
    config = model()
    resolve = seconds(lambda: text.resolve(config), CALLS_PER_TURN)
    report.line("resolved text, ms", 1e3 * resolve)
