"""What gradients need of a forward pass: the residuals of each layer.

A residual is a tensor that the forward pass keeps for the backward pass. Which ones follows from
the derivative of each operation: a product needs both operands, a norm its input, what it made of
it, and its result, a softmax its result, an activation function what the table says. A tensor that
two layers share counts once, for the one that makes it, or that has it as its input if that is a
norm. Counts are those of programs that XLA makes; they hold for the operations that it runs, not
for a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lingo.layers.embedding import Embedding
from lingo.layers.embedding_tables import EmbeddingTables
from lingo.layers.feed_forward import FeedForward
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.moe.moe import MoE
from lingo.layers.moe.router import Router
from lingo.layers.norm import Norm
from lingo.layers.sequence.dot_product import DotProductAttention
from lingo.layers.sequence.positions import (
    AttentionPositions,
    LearnedPositions,
    SinusoidPositions,
)
from lingo.layers.sequence.softmax import Head
from lingo.layers.vision.image_positions import ImagePositions
from lingo.layers.vision.patch_head import ClassToken
from lingo.layers.wrap.wrapper import Wrapper
from lingo.learner.state import FLOAT_BYTES
from lingo.learner.task import Task
from lingo.mesh.rules import Rules
from lingo.mesh.topology import Topology
from lingo.ops.activations import Activation

BYTES = {"float32": FLOAT_BYTES, "bfloat16": 2, "float16": 2}

ACTIVATION_RESIDUALS: dict[Activation, int] = {
    "identity": 1,  # its result, which the next product reads
    "relu": 1,
    "sigmoid": 1,
    "tanh": 1,
    "squared_relu": 2,  # max(x, 0), its square
    "silu": 2,  # x, its result
    "gelu_tanh": 3,  # x, the tanh, its result
    "gelu": 4,  # x, two of the error function, its result
}
"""Activation function -> the number of tensors that its gradient and the next product need."""

POSITION_AXES: dict[int, tuple[str, ...]] = {
    3: ("length",),
    4: ("height", "width"),
    5: ("depth", "height", "width"),
}
"""Logical axes of the positions of sequences, images and volumes, by the number of dims."""

_SEQUENCE = ("batch", *POSITION_AXES[3])
_NOTHING = (
    AttentionPositions,
    ClassToken,
    Head,  # but for its logits
    ImagePositions,
    LearnedPositions,
    Router,
    SinusoidPositions,
    Task,
    Wrapper,
)
"""Layers that keep no tensor, or none that is as large as activations."""


class Residual(NamedTuple):
    """Tensors of one shape that gradients need."""

    copies: int
    shape: tuple[int, ...]  # for a whole batch
    axes: tuple[str | None, ...]  # logical axis of each dim
    dtype: str = "float32"
    for_axis: str = ""  # mesh axis without whose devices it does not exist
    # whether XLA keeps it twice where a device has one example or one head: without that dim too
    is_squeezed: bool = False

    def part_bytes(self, mesh: Topology, rules: Rules, num_parts: int = 1) -> float:
        """Returns the bytes of one copy on a device, of one of the parts of a batch."""
        sizes = list(self._part_shape(mesh, rules))
        return math.prod(sizes[1:]) * math.ceil(sizes[0] / num_parts) * BYTES[self.dtype]

    def num_copies(self, mesh: Topology, rules: Rules, num_parts: int = 1) -> int:
        """Returns how many copies a device has."""
        if self.for_axis and mesh.size([self.for_axis]) == 1:
            return 0
        batch, second, *_ = self._part_shape(mesh, rules)
        is_twice = self.is_squeezed and (second == 1 or math.ceil(batch / num_parts) == 1)
        return self.copies * (2 if is_twice else 1)

    def _part_shape(self, mesh: Topology, rules: Rules) -> Iterator[int]:
        used: set[str] = set()
        for size, name in zip(self.shape, self.axes, strict=True):
            axes = set(rules.activations.get(name, ())) - used if name else set[str]()
            used |= axes
            yield math.ceil(size / mesh.size(axes))


def residuals(
    layer: Layer, shape: Sequence[int], *, num_slots: int | None, memory_length: int | None
) -> list[Residual] | None:
    """Returns the residuals of a layer, without those of layers inside; None: there is no rule.

    Args:
        layer: any layer but those of `image_residual.py`.
        shape: of its input, or of that of the nearest layer around it that counts its operations.
        num_slots: of the layer of experts around it; None without one.
        memory_length: positions that the layer attends to; None: those of `shape`.
    """
    match layer:
        case Norm() if len(shape) in (2, 3):
            size = (*shape[:2], layer.p.dim)
            # products read all features of its result
            return [Residual(2, size, (*_SEQUENCE, "embed")), Residual(1, size, (*_SEQUENCE, None))]
        case FeedForward():
            return [_of_network(layer, shape, num_slots)]
        case DotProductAttention() if len(shape) == 3:
            return list(_of_attention(layer, shape, memory_length or shape[1]))
        case MoE():
            return list(_of_experts(layer, shape))
        case EmbeddingTables():
            shape = shape[0], len(layer.p.vocab_sizes), layer.p.dim
            return [Residual(1, shape, ("batch", None, "embed"))]
        case Embedding() if len(shape) in (2, 3):
            return [Residual(2, (*shape[:2], layer.p.dim), (*_SEQUENCE, "embed"))]
        case Linear():
            names = [None] * (len(shape) - 2)
            return [Residual(1, (*shape[:-1], layer.p.output_dim), ("batch", *names, None))]
        case _ if _keeps_nothing(layer):
            return []
        case _:
            return None


def _keeps_nothing(layer: Layer) -> bool:
    """Returns whether all that gradients need of a layer is that of layers beside or inside it.

    That is known of lingo's own layers: of some by name, of others because they multiply
    nothing themselves, and have layers inside.
    """
    if isinstance(layer, _NOTHING):
        return True
    is_own = type(layer).__module__.partition(".")[0] in ("lingo", "tasks")
    return is_own and not layer.products and any(layer.inner_layers())


def logits_residual(shape: Sequence[int], num_classes: int) -> Residual:
    """Returns the logits of a loss, and their softmax: of all positions, which a loss shifts."""
    names = (None,) * (len(shape) - 2)
    return Residual(2, (*shape[:-1], num_classes), ("batch", *names, "vocab"))


def _of_network(layer: FeedForward, shape: Sequence[int], num_slots: int | None) -> Residual:
    width = next(s.shape[-1] for s in layer.declarations() if s.axes[-1:] == ("mlp",))
    copies = ACTIVATION_RESIDUALS[layer.p.activation] + 2 * layer.p.gated
    if num_slots is not None:
        return Residual(copies, (num_slots, width), ("batch", "mlp"))
    dims = shape[1:-1]
    names = ("length",) if len(dims) == 1 else (None,) * len(dims)
    return Residual(copies, (shape[0], *dims, width), ("batch", *names, "mlp"))


def _of_attention(
    layer: DotProductAttention, shape: Sequence[int], num_keys: int
) -> Iterator[Residual]:
    """Yields scaled queries and averages, which two layouts hold; keys, values; their weights.

    Every device has keys and values of all positions.
    """
    batch, length, _ = shape
    ends = ("embed", "head_dim")
    (query, key) = [s for s in layer.declarations() if s.axes[::2] == ends][:2]
    names = (*_SEQUENCE, "heads", None)
    # a norm of them keeps its input and what it made of it
    normed = 2 if layer.p.qk_norm is not None else 0
    yield Residual(3 + normed, (batch, length, *query.shape[1:]), names)
    yield Residual(2, (batch, num_keys, *key.shape[1:]), ("batch", None, key.axes[1], None))
    if normed:
        names = (*_SEQUENCE, key.axes[1], None)
        yield Residual(normed, (batch, num_keys, *key.shape[1:]), names)
    if not layer.is_blockwise(length, num_keys):
        weights = (batch, query.shape[1], length, num_keys)
        yield Residual(1, weights, ("batch", "heads", "length", None), is_squeezed=True)


def _of_experts(layer: MoE, shape: Sequence[int]) -> Iterator[Residual]:
    """Yields inputs and results of experts, and one-hot tensors that send tokens to them."""
    slots = layer.num_slots(shape)
    yield Residual(2, (slots, shape[-1]), ("batch", "embed"))
    group = layer.p.group_size or shape[1]
    yield Residual(2, (slots, group), ("batch", None), for_axis="expert")
