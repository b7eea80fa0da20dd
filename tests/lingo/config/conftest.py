"""A toy experiment: a few classes with every type of field, and one tree of them."""

from __future__ import annotations

import random
import sys
from types import ModuleType
from typing import Any, Literal

import pytest

from lingo.config.base.types import Operational, Wrapped
from lingo.config.params import Configurable, ParamError, Params


class Layer(Configurable, interface=True):
    dtype: str = "float32"  # of the computation


class Norm(Layer):
    dim: int  # width
    epsilon: float = 1e-6  # added to the variance


class LayerNorm(Norm):
    center: bool = True  # subtract the mean


class Rotary(Layer):
    theta: float = 1e4  # longest wavelength


class Attention(Layer):
    dim: int  # width
    num_heads: int = 8  # heads
    positions: Rotary | None = None  # None: none


class FeedForward(Layer):
    dim: int  # width
    hidden_dim: int | None = None  # None: 4 * dim
    activation: Literal["relu", "gelu"] = "relu"  # between the layers
    dropout_rate: float = 0.0  # of the hidden layer
    norm: Norm = Norm  # before the layers

    def check(self) -> None:
        if self.p.hidden_dim == 13:
            raise ParamError("hidden_dim=13 brings bad luck")

    def setup(self) -> None:
        self.norm = self.p.norm.build(dim=self.p.dim)


class Gated(FeedForward):
    norm: Norm = LayerNorm  # before the layers


class MoE(Layer):
    dim: int  # width
    num_experts: int = 4  # experts
    expert: FeedForward = FeedForward  # one of them
    dropout_rate: float = 0.0  # of the router

    def setup(self) -> None:
        self.expert = self.p.expert.build(dim=self.p.dim)


class Remat(Layer):
    layer: Wrapped  # what is computed again
    policy: str = "all"  # what is kept

    def setup(self) -> None:
        self.layer = self.p.layer.build()


class Block(Layer):
    dim: int  # width
    feed_forward: FeedForward = FeedForward.params(activation="gelu")  # second half
    attention: Attention = Attention  # first half

    def setup(self) -> None:
        self.feed_forward = self.p.feed_forward.build(dim=self.p.dim)
        self.attention = self.p.attention.build(dim=self.p.dim)


class Stack(Layer):
    dim: int  # width
    layer: Layer | list[Layer] = Block  # one, or a pattern
    num_layers: int = 2  # in all

    def setup(self) -> None:
        pattern = self.p.layer if isinstance(self.p.layer, list) else [self.p.layer]
        for i in range(self.p.num_layers):
            pattern[i % len(pattern)].build(dim=self.p.dim)


class Funnel(Layer):
    """Each layer half as wide as the one before."""

    dim: int  # width of the first
    layer: Layer = Norm  # one

    def setup(self) -> None:
        for i in range(2):
            self.p.layer.build(dim=self.p.dim >> i)


class Tied(Layer):
    """Its layer uses its norm."""

    dim: int = 4  # width
    norm: Norm = Norm  # the layer inherits it
    child: FeedForward = FeedForward  # the layer

    def setup(self) -> None:
        self.child = self.p.child.build(norm=self.p.norm, dim=self.p.dim)


class Optimizer(Configurable, interface=True):
    learning_rate: float = 1e-3  # of a step


class Adam(Optimizer):
    betas: tuple[float, float] = (0.9, 0.95)  # decay of the moments


class Input(Configurable, interface=True):
    pattern: str = ""  # of file names
    sizes: list[int] = []  # of batches
    weights: dict[str, float] = {}  # by source
    extra: Any = None  # whatever


class Tuned(Configurable):
    input: Operational[Input | None] = None  # may change


class Toy(Configurable):
    model: Layer = Stack.params(dim=8)  # what is learned
    optimizer: Optimizer = Adam  # how
    eval_inputs: dict[str, Input] = {"heldout": Input}  # on what
    max_steps: Operational[int] = 100  # when to stop
    shuffle: bool = True  # the examples
    name: str | None = None  # of the run

    def setup(self) -> None:
        self.model = self.p.model.build()


@pytest.fixture
def toys() -> ModuleType:
    """The toy classes."""
    return sys.modules[__name__]


@pytest.fixture
def random_tree() -> Any:
    """Draws a toy experiment with random classes and values."""
    return _random_experiment


def _random_experiment(seed: int) -> Params:
    rng = random.Random(seed)

    def feed_forward() -> Params:
        node = rng.choice([FeedForward, Gated]).params()
        if rng.random() < 0.5:
            node.dropout_rate = rng.choice([0.1, 1e-300, 1 / 3, 1e22, -0.0])
        if rng.random() < 0.3:
            node.norm.epsilon = rng.random()
        if rng.random() < 0.2:
            node.norm = LayerNorm.params(center=False)
        return node

    def layer(depth: int) -> Params:
        if depth > 4 or rng.random() < 0.3:
            return Block.params(feed_forward=rng.choice([feed_forward(), FeedForward]))
        if rng.random() < 0.5:
            return Remat.params(layer=layer(depth + 1))
        inner: Any = [layer(depth + 1) for _ in range(rng.randint(1, 3))]
        return Stack.params(layer=rng.choice([inner, inner[0]]), num_layers=rng.randint(1, 4))

    texts = ["", "a b", 'd\'oh "quoted"', "[1, 2]", "line\nbreak", "日本\ud800", "x  # default"]
    extra = [None, True, -7, 2**70, 0.1, [1, (2, [])], (3,), {"@": 1}, {"a": {"@tuple": 2}}, Norm]
    inputs = {
        rng.choice(texts) or "x": Input.params(
            pattern=rng.choice(texts), sizes=[rng.randint(0, 9)] * 2, extra=rng.choice(extra)
        )
        for _ in range(rng.randint(0, 3))
    }
    toy = Toy.params(model=Stack.params(dim=8, layer=layer(0)), eval_inputs=inputs)
    if rng.random() < 0.5:
        toy.optimizer.betas = (rng.random(), 0.5)
    return toy
