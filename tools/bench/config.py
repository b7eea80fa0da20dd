"""Parameter objects against Fiddle's own tools, on the same tree of 1,001 nodes, in turns.

What is compared: JSON out and in, difference of two trees, flat text, and setting a field of all
nodes of a class. The resolved text, which Fiddle has no counterpart of, is timed alone.
"""

from __future__ import annotations

import statistics
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import fiddle as fdl
from fiddle import printing, selectors
from fiddle._src import diffing
from fiddle.experimental import serialization

from lingo.config import text
from lingo.config.node.tree import nodes
from lingo.config.params import Configurable, Params
from lingo.config.roots import roots
from lingo.config.serial import serial
from tools.bounds import Bound, Bounds, at_least

NUM_BLOCKS = 200  # of five nodes each, and the root
NUM_TURNS = 5
OURS_A_TURN = 21  # calls of lingo, to one of Fiddle


class Norm(Configurable, kind=True):
    """Two fields."""

    dim: int  # width of the input
    epsilon: float = 1e-6  # added to the variance


class Attention(Configurable, kind=True):
    """Three fields."""

    dim: int  # width of the input
    num_heads: int = 8  # heads
    dropout_rate: float = 0.0  # of the weights


class FeedForward(Configurable, kind=True):
    """Four fields, one a template."""

    dim: int  # width of the input
    hidden_dim: int | None = None  # None: 4 * dim
    activation: str = "relu"  # between the layers
    norm: Norm = Norm  # before them

    def setup(self) -> None:
        self.p.norm.build(dim=self.p.dim)


class Block(Configurable, kind=True):
    """Four fields, three of them templates."""

    dim: int  # width of the input
    attention: Attention = Attention  # first half
    feed_forward: FeedForward = FeedForward  # second half
    norm: Norm = Norm  # before the first half

    def setup(self) -> None:
        for child in (self.p.attention, self.p.feed_forward, self.p.norm):
            child.build(dim=self.p.dim)


class Model(Configurable, kind=True):
    """A list of blocks."""

    dim: int = 512  # width
    layers: list[Block]  # one after the other

    def setup(self) -> None:
        for layer in self.p.layers:
            layer.build(dim=self.p.dim)


class FiddleNorm:
    """`Norm` for Fiddle."""

    def __init__(self, dim: int | None = None, epsilon: float = 1e-6) -> None: ...


class FiddleAttention:
    """`Attention` for Fiddle."""

    def __init__(
        self, dim: int | None = None, num_heads: int = 8, dropout_rate: float = 0.0
    ) -> None: ...


class FiddleFeedForward:
    """`FeedForward` for Fiddle."""

    def __init__(
        self,
        dim: int | None = None,
        hidden_dim: int | None = None,
        activation: str = "relu",
        norm: Any = None,
    ) -> None: ...


class FiddleBlock:
    """`Block` for Fiddle."""

    def __init__(
        self,
        dim: int | None = None,
        attention: Any = None,
        feed_forward: Any = None,
        norm: Any = None,
    ) -> None: ...


class FiddleModel:
    """`Model` for Fiddle."""

    def __init__(self, dim: int = 512, layers: Any = None) -> None: ...


class Comparison(NamedTuple):
    """Two ways to do the same, in seconds, medians.

    Attributes:
        name: what was done.
        ours: lingo's time.
        theirs: Fiddle's time.
        ratio: how many times faster lingo is: the median over turns.
        wanted: how many times faster it ought to be; None for a part of another comparison.
    """

    name: str
    ours: float
    theirs: float
    ratio: float
    wanted: Bound | None

    def __str__(self) -> str:
        times = f"{self.ours * 1e3:8.1f} {self.theirs * 1e3:10.0f}"
        return f"{self.name:14} {times} {self.ratio:8.0f}  {self.wanted or ''}"


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
    """Returns the same tree as Fiddle would have it."""
    return fdl.Config(
        FiddleModel,
        layers=[
            fdl.Config(
                FiddleBlock,
                attention=fdl.Config(FiddleAttention, num_heads=4),
                feed_forward=fdl.Config(
                    FiddleFeedForward, hidden_dim=64 + i, norm=fdl.Config(FiddleNorm, epsilon=1e-5)
                ),
                norm=fdl.Config(FiddleNorm, epsilon=1e-5),
            )
            for i in range(NUM_BLOCKS)
        ],
    )


def seconds(function: Callable[[], Any], repeats: int = 1) -> float:
    """Returns the median processor time of a call, without garbage collection, as `timeit` does."""
    timer = timeit.Timer(function, timer=time.process_time)
    return statistics.median(timer.repeat(repeats, number=1))


def turns(ours: Callable[[], Any], theirs: Callable[[], Any]) -> list[tuple[float, float]]:
    """Returns the times of both, turn by turn: the same machine is not always as fast."""
    return [(seconds(ours, OURS_A_TURN), seconds(theirs)) for _ in range(NUM_TURNS)]


def compared(name: str, times: list[tuple[float, float]], wanted: Bound | None) -> Comparison:
    """Returns what comes of turns."""
    ours, theirs = (statistics.median(side) for side in zip(*times, strict=True))
    return Comparison(name, ours, theirs, statistics.median(b / a for a, b in times), wanted)


def comparisons() -> list[Comparison]:
    """Measures everything that Fiddle can do, too."""
    places = roots.find()
    tools = {"tools": (Path(__file__).parents[1],)}  # where the classes above are
    places = places._replace(packages=places.packages | tools)
    mine, theirs = model(), fiddle_model()
    my_other, their_other = model(), fiddle_model()
    my_other.all(Attention).set(dropout_rate=0.1)
    selectors.select(their_other, FiddleAttention).set(dropout_rate=0.1)

    def dump() -> str:
        return serial.dump(mine, serial.Origin(), "", places)

    my_json, their_json = dump(), serialization.dump_json(theirs)
    out = turns(dump, lambda: serialization.dump_json(theirs))
    back = turns(
        lambda: serial.load(my_json, roots=places), lambda: serialization.load_json(their_json)
    )
    both = [(a + c, b + d) for (a, b), (c, d) in zip(out, back, strict=True)]
    return [
        compared("JSON", both, at_least(50)),
        compared("  out", out, None),
        compared("  in", back, None),
        compared(
            "difference",
            turns(
                lambda: text.diff(text.flatten(mine), text.flatten(my_other)),
                lambda: diffing.build_diff(theirs, their_other),
            ),
            at_least(100),
        ),
        compared(
            "flat text",
            turns(
                lambda: text.render(text.flatten(mine)),
                lambda: printing.as_str_flattened(theirs),
            ),
            at_least(10),
        ),
        compared(
            "selection",
            turns(
                lambda: mine.all(Attention).set(dropout_rate=0.1),
                lambda: selectors.select(theirs, FiddleAttention).set(dropout_rate=0.1),
            ),
            at_least(10),
        ),
    ]


def main() -> int:
    """Prints the ratios; returns the exit code."""
    bounds = Bounds()
    print(f"{len(nodes(model()))} nodes      lingo ms  Fiddle ms    ratio  wanted")
    for comparison in comparisons():
        print(comparison)
        bounds.hold(f"{comparison.name}, times faster", comparison.ratio, comparison.wanted)
    config = model()
    print(f"{'resolved text':14} {seconds(lambda: text.resolve(config), 21) * 1e3:8.1f}")
    return bounds.exit_code()
