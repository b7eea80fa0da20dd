"""Residuals: the tensors that a layer's forward pass keeps for its gradient.

Plans of memory count their bytes. The derivative of each operation decides which tensors these are:
a product needs both operands, a norm its input and its normalized input, a softmax its result, an
activation function the tensors in ACTIVATION_COPIES.

A tensor that one layer computes and another layer reads counts once. For this, each layer marks the
residuals that are its input or its output, and the shapes that `flops` passes from layer to layer
identify the tensor (`lingo.layers.flops`). The counts hold for the operations that XLA runs, not
for one model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from lingo.mesh.rules import Rules
from lingo.mesh.topology import Topology
from lingo.ops.activations import Activation

if TYPE_CHECKING:
    from lingo.layers.flops import Record

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

ACTIVATION_COPIES: dict[Activation, int] = {
    "identity": 1,  # the result, which the next product reads
    "relu": 1,
    "sigmoid": 1,
    "tanh": 1,
    "squared_relu": 2,  # max(x, 0) and the result
    "silu": 2,  # x and the result
    "gelu_tanh": 3,  # x, the tanh and the result
    "gelu": 4,  # x, two tensors of the error function and the result
}
"""Activation function -> the number of tensors that its gradient and the next product need."""

Origin = Literal["input", "output", "own"]
"""Whether a residual is the layer's input, its output, or its own intermediate tensor.

Other layers may keep an input or an output, too; it then counts once."""

POSITION_AXES: dict[int, tuple[str, ...]] = {
    2: (),
    3: ("length",),
    4: ("height", "width"),
    5: ("depth", "height", "width"),
}
"""Rank of a tensor [B, positions..., C] -> logical axes of its positions.

The tensors are vectors, sequences, images and volumes."""

SEQUENCE_AXES = ("batch", *POSITION_AXES[3])


class Residual(NamedTuple):
    """Tensors of one shape that a layer's gradient needs."""

    copies: int  # how many such tensors
    shape: tuple[int, ...]  # for a whole batch
    axes: tuple[str | None, ...]  # logical axis of each dim
    dtype: str = ""  # "": the dtype of the layer
    # name of a mesh axis: the residual exists only if this axis has several devices; "": always
    for_axis: str = ""
    # whether XLA keeps a second copy, without the dim of size 1, if a device has one example or one
    # head
    is_squeezed: bool = False
    origin: Origin = "own"  # whether the tensors are the layer's input, output or neither
    # whether the tensor follows element by element from other residuals, so that a TPU's compiler
    # computes it again instead of keeping it; with `copies=0`, says this of the layer's output,
    # which other layers may keep
    is_elementwise: bool = False
    # whether the first operation that reads the tensor casts it to float32; a TPU's compiler then
    # keeps it as float32, unless a device has one head
    is_read_in_float32: bool = False

    def on_tpu(self, mesh: Topology, rules: Rules) -> Residual:
        """Returns this residual with the changes that a TPU's compiler makes to it.

        The compiler computes elementwise results again instead of keeping them, and keeps some
        tensors as float32.
        """
        sizes = dict(zip(self.axes, self._part_shape(mesh, rules), strict=True))
        is_float32 = self.is_read_in_float32 and sizes.get("heads", sizes.get("kv_heads")) != 1
        return self._replace(
            copies=0 if self.is_elementwise else self.copies,
            dtype="float32" if is_float32 else self.dtype,
            is_squeezed=False,
        )

    def part_bytes(self, mesh: Topology, rules: Rules, num_parts: int = 1) -> float:
        """Returns the bytes of one of the copies on a device.

        The batch is computed in `num_parts` equal parts; the bytes are for one part.
        """
        sizes = list(self._part_shape(mesh, rules))
        return math.prod(sizes[1:]) * math.ceil(sizes[0] / num_parts) * ITEM_BYTES[self.dtype]

    def num_copies(self, mesh: Topology, rules: Rules, num_parts: int = 1) -> int:
        """Returns how many tensors of this residual a device keeps.

        The batch is computed in `num_parts` equal parts; the number is for one part.
        """
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


class ResidualCall(NamedTuple):
    """A call of a layer, the argument of `Layer.residuals`."""

    # shape of the layer's input; if its `flops` was not called, of the input of the nearest layer
    # around it whose `flops` was
    shape: tuple[int, ...]
    calls: Record  # the calls of `flops`, for all layers of the model
    num_slots: int | None = None  # slots of the `MoE` around the layer; None: it is in no MoE
    # number of positions that the layer attends to; None: the length in `shape`
    memory_length: int | None = None


def batch_residual(
    copies: int, shape: Sequence[int], origin: Origin = "own", *, is_elementwise: bool = False
) -> Residual:
    """Returns a residual of vectors [B, C], sequences [B, T, C], images or volumes.

    Its batch and positions have their usual logical axes; the channels C have none.
    """
    axes = ("batch", *POSITION_AXES[len(shape)], None)
    return Residual(copies, tuple(shape), axes, origin=origin, is_elementwise=is_elementwise)
