"""Residuals: the tensors that a layer's forward pass keeps for its gradient.

The derivative of each operation decides which tensors these are: a product needs both operands, a
norm its input and its normalized input, a softmax its result, an activation function the tensors in
ACTIVATION_COPIES. A tensor that one layer makes and another layer reads counts once: each layer
marks the residuals that are its input or its output, and the shapes that `flops` passes from layer
to layer identify the tensor. The counts hold for the operations that XLA runs, not for one model.
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

Origin = Literal["input", "output", "own"]
"""A residual may be the layer's input or output, which other layers may keep, too, or its own."""

POSITION_AXES: dict[int, tuple[str, ...]] = {
    2: (),
    3: ("length",),
    4: ("height", "width"),
    5: ("depth", "height", "width"),
}
"""Logical axes of positions by the number of dims: vectors, sequences, images and volumes."""

SEQUENCE_AXES = ("batch", *POSITION_AXES[3])


class Residual(NamedTuple):
    """Tensors of one shape that a gradient needs."""

    copies: int
    shape: tuple[int, ...]  # for a whole batch
    axes: tuple[str | None, ...]  # logical axis of each dim
    dtype: str = ""  # "": the dtype of the layer
    for_axis: str = ""  # mesh axis; the residual exists only if this axis has several devices
    # whether XLA keeps a second copy without the dim of size 1 if a device has one example or head
    is_squeezed: bool = False
    origin: Origin = "own"
    # whether it follows element by element from other residuals, so that a TPU's compiler does not
    # keep it; with 0 copies, this is about an output that other layers may keep
    is_elementwise: bool = False
    # whether its first reader casts it to float32: a TPU's compiler then keeps it as float32,
    # unless a device has one head
    is_read_in_float32: bool = False

    def on_tpu(self, mesh: Topology, rules: Rules) -> Residual:
        """Returns the residual as a TPU's compiler keeps it."""
        sizes = dict(zip(self.axes, self._part_shape(mesh, rules), strict=True))
        is_float32 = self.is_read_in_float32 and sizes.get("heads", sizes.get("kv_heads")) != 1
        return self._replace(
            copies=0 if self.is_elementwise else self.copies,
            dtype="float32" if is_float32 else self.dtype,
            is_squeezed=False,
        )

    def part_bytes(self, mesh: Topology, rules: Rules, num_parts: int = 1) -> float:
        """Returns the bytes of one copy on a device, for one of `num_parts` parts of a batch."""
        sizes = list(self._part_shape(mesh, rules))
        return math.prod(sizes[1:]) * math.ceil(sizes[0] / num_parts) * ITEM_BYTES[self.dtype]

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


class ResidualCall(NamedTuple):
    """A call of a layer, for `Layer.residuals`."""

    shape: tuple[int, ...]  # of its input, or of the nearest outer layer's that has `flops`
    calls: Record  # the calls of `flops`, for all layers of the model
    num_slots: int | None = None  # slots of the `MoE` around it; None: it is not in one
    memory_length: int | None = None  # positions that it attends to; None: the length in `shape`


def batch_residual(
    copies: int, shape: Sequence[int], origin: Origin = "own", *, is_elementwise: bool = False
) -> Residual:
    """Returns the residual of vectors [B, C], sequences [B, T, C], images or volumes."""
    axes = ("batch", *POSITION_AXES[len(shape)], None)
    return Residual(copies, tuple(shape), axes, origin=origin, is_elementwise=is_elementwise)
