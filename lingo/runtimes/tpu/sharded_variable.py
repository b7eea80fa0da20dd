"""Tensors in parts that are one tensor in the program of all cores.

TensorFlow joins parts by `TPUPartitionedInputV2`, and its TPU compiler takes them apart again: as
the sharding says, part i is for the device that the tile assignment has at i, which has it already.
So what the program assigns to a variable in parts never is in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.mesh.tiles import Tiles
from lingo.runtimes.tpu.cut import Cut


class ShardedVariable:
    """A variable with a part on each core.

    Attributes:
        cut: how it is cut.
    """

    def __init__(self, cut: Cut, value: Any, devices: Sequence[str]) -> None:
        """Puts its first value on the cores.

        Args:
            cut: how it is cut.
            value: on the host: an array, or something that is read slice by slice.
            devices: TensorFlow's name of each.
        """
        self.cut = cut
        self._parts = put_parts(tf.Variable, cut, value, devices)

    def handle(self) -> tf.Tensor:
        """Returns what `read` and `write` take, outside of the program that calls them."""
        return join_parts([part.handle for part in self._parts], self.cut)

    def read(self, handle: tf.Tensor) -> tf.Tensor:
        """Returns the value, [*cut.shape]."""
        return remove_padding(
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=self.dtype), self.cut
        )

    def write(self, handle: tf.Tensor, value: tf.Tensor) -> None:
        """Changes the value, [*cut.shape]."""
        if self.cut.shape != self.cut.padded:
            sizes = zip(self.cut.padded, self.cut.shape, strict=True)
            value = tf.pad(value, [(0, padded - size) for padded, size in sizes])
        value = _with_sharding(value, self.cut.tiles, use_sharding_op=True)
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def load(self, value: Any) -> None:
        """Changes the value from the host."""
        for variable, part in zip(self._parts, self.cut.parts(value), strict=True):
            variable.assign(part)

    def numpy(self) -> np.ndarray:
        """Returns the value on the host."""
        return self.cut.whole(self._parts)

    @property
    def dtype(self) -> tf.DType:
        """The type of the elements."""
        return self._parts[0].dtype


def put_parts(
    make: Callable[[Any], Any], cut: Cut, value: Any, devices: Sequence[str]
) -> list[Any]:
    """Returns the parts of a tensor, made on the devices that they are for.

    Args:
        make: `tf.constant` or `tf.Variable`.
        cut: how the tensor is cut.
        value: [*cut.shape] on the host.
        devices: TensorFlow's name of each device of the mesh.
    """
    found = []
    for device, part in zip(cut.devices, cut.parts(value), strict=True):
        with tf.device(devices[device]):
            found.append(make(part))
    return found


def join_parts(parts: Sequence[tf.Tensor], cut: Cut) -> tf.Tensor:
    """Returns what parts are together, [*cut.padded]: of tensors, or of handles of variables."""
    dims = [] if cut.tiles.is_replicated else list(cut.tiles.tile_assignment_dimensions)
    tensor = tf.raw_ops.TPUPartitionedInputV2(inputs=list(parts), partition_dims=dims)
    return _with_sharding(tensor, cut.tiles)


def remove_padding(value: tf.Tensor, cut: Cut) -> tf.Tensor:
    """Returns [*cut.shape], without what fills up the last parts."""
    return value if cut.shape == cut.padded else value[tuple(map(slice, cut.shape))]


def _with_sharding(x: tf.Tensor, tiles: Tiles, *, use_sharding_op: bool = False) -> Any:
    """Returns a tensor with a sharding that names every device, as the TPU compiler reads it.

    Args:
        x: any tensor.
        tiles: which device has which part.
        use_sharding_op: whether an operation of its own says so, or the one that made `x`.
    """
    from tensorflow.python.compiler.xla.experimental import xla_sharding

    if tiles.is_replicated:
        return xla_sharding.replicate(x, use_sharding_op=use_sharding_op)
    make = xla_sharding.partial_tile if tiles.replicate_on_last_tile_dim else xla_sharding.tile
    return make(x, tiles.tile_assignment, use_sharding_op=use_sharding_op)
