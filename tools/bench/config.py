"""Parameter objects against Fiddle's own tools, on the same tree of 1,001 nodes in the same run.

What is compared: JSON out and in, difference of two trees, flat text, and setting a field of all nodes
of a class. The resolved text, which Fiddle has no counterpart of, is timed alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import fiddle as fdl
from fiddle import printing, selectors
from fiddle._src import diffing
from fiddle.experimental import serialization

from lingo.config import roots, serial, text
from lingo.config.params import Configurable, Params

NUM_BLOCKS = 200  # of five nodes each, and the root


class Norm(Configurable, kind=True):
    dim: int  # width of the input
    epsilon: float = 1e-6  # added to the variance


class Attention(Configurable, kind=True):
    dim: int  # width of the input
    num_heads: int = 8  # heads
    dropout_rate: float = 0.0  # of the weights


class FeedForward(Configurable, kind=True):
    dim: int  # width of the input
    hidden_dim: int | None = None  # None: 4 * dim
    activation: str = "relu"  # between the layers
    norm: Norm = Norm  # before them

    def setup(self) -> None:
        self.p.norm.build(dim=self.p.dim)


class Block(Configurable, kind=True):
    dim: int  # width of the input
    attention: Attention = Attention  # first half
    feed_forward: FeedForward = FeedForward  # second half
    norm: Norm = Norm  # before the first half

    def setup(self) -> None:
        for child in (self.p.attention, self.p.feed_forward, self.p.norm):
            child.build(dim=self.p.dim)


class Model(Configurable, kind=True):
    dim: int = 512  # width
    layers: list[Block]  # one after the other

    def setup(self) -> None:
        for layer in self.p.layers:
            layer.build(dim=self.p.dim)


class FiddleNorm:
    def __init__(self, dim: int | None = None, epsilon: float = 1e-6) -> None: ...


class FiddleAttention:
    def __init__(
        self, dim: int | None = None, num_heads: int = 8, dropout_rate: float = 0.0
    ) -> None: ...


class FiddleFeedForward:
    def __init__(
        self,
        dim: int | None = None,
        hidden_dim: int | None = None,
        activation: str = "relu",
        norm: Any = None,
    ) -> None: ...


class FiddleBlock:
    def __init__(
        self,
        dim: int | None = None,
        attention: Any = None,
        feed_forward: Any = None,
        norm: Any = None,
    ) -> None: ...


class FiddleModel:
    def __init__(self, dim: int = 512, layers: Any = None) -> None: ...


class Ratio(NamedTuple):
    """A comparison.

    Attributes:
        name: what was done.
        wanted: how many times faster it ought to be.
        ours: seconds, median.
        theirs: seconds, median.
    """

    name: str
    wanted: int
    ours: float
    theirs: float

    @property
    def value(self) -> float:
        """How many times faster it is."""
        return self.theirs / self.ours


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


def seconds(function: Callable[[], Any], repeats: int) -> float:
    """Returns the median time of a call."""
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def ratios() -> list[Ratio]:
    """Measures everything that Fiddle can do, too."""
    mine, theirs = model(), fiddle_model()
    places = roots.find()
    places = places._replace(packages={**places.packages, "tools": (Path(__file__).parents[1],)})
    my_json = serial.dump(mine, serial.Origin(), "", places)
    their_json = serialization.dump_json(theirs)
    my_other, their_other = model(), fiddle_model()
    my_other.all(Attention).set(dropout_rate=0.1)
    selectors.select(their_other, FiddleAttention).set(dropout_rate=0.1)
    return [
        Ratio(
            "JSON out",
            100,
            seconds(lambda: serial.dump(mine, serial.Origin(), "", places), 21),
            seconds(lambda: serialization.dump_json(theirs), 3),
        ),
        Ratio(
            "JSON in",
            100,
            seconds(lambda: serial.load(my_json, roots=places), 21),
            seconds(lambda: serialization.load_json(their_json), 3),
        ),
        Ratio(
            "difference",
            100,
            seconds(lambda: text.diff(text.flat(mine), text.flat(my_other)), 11),
            seconds(lambda: diffing.build_diff(theirs, their_other), 3),
        ),
        Ratio(
            "flat text",
            10,
            seconds(lambda: text.render(text.flat(mine)), 11),
            seconds(lambda: printing.as_str_flattened(theirs), 3),
        ),
        Ratio(
            "selection",
            10,
            seconds(lambda: mine.all(Attention).set(dropout_rate=0.1), 21),
            seconds(lambda: selectors.select(theirs, FiddleAttention).set(dropout_rate=0.1), 5),
        ),
    ]


def main() -> int:
    """Prints the ratios; returns 1 if one is smaller than it ought to be."""
    found = ratios()
    print(f"{1 + 5 * NUM_BLOCKS} nodes        lingo      Fiddle   ratio   wanted")
    for r in found:
        print(
            f"{r.name:14} {r.ours * 1e3:8.1f} ms {r.theirs * 1e3:8.0f} ms {r.value:7.0f} {r.wanted:8}"
        )
    config = model()
    print(f"{'resolved text':14} {seconds(lambda: text.resolve(config), 11) * 1e3:8.1f} ms")
    return 0 if all(r.value >= r.wanted for r in found) else 1
