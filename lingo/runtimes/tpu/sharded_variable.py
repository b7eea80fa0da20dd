"""Sharded tensors: parts on the cores that are one tensor in the program of all cores.

TensorFlow joins the parts by `TPUPartitionedInputV2`, and its TPU compiler splits them again by the
sharding: part i is for the i-th device of the tile assignment, which already holds it. So the whole
value of a sharded variable is never on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.mesh.split import Split
from lingo.mesh.tiles import Tiles, tiles
from lingo.mesh.topology import Topology
from lingo.mesh.weight_rows import read_rows, split_rows, weight_rows
from lingo.runtimes.layout import pad_part


class Cut:
    """A tensor's parts, in the order of its tile assignment: row-major, copies next to each other.

    `padded` is the shape of all parts together; elements beyond `shape` are zero. The program has
    tensors of the shape `inside`: `shape`, or `padded` if they are in rows.
    """

    def __init__(self, shape: Sequence[int], split: Split, mesh: Topology) -> None:
        self.shape, self.padded = tuple(shape), split.padded_shape(shape, mesh)
        self.part_shape, self.tiles = split.part_shape(shape, mesh), tiles(split, mesh)
        self._rows = weight_rows(shape, split, mesh)
        self.inside = self.shape if self._rows is None else self.padded
        rank = len(self.padded)
        self._tiles = [tile[:rank] for tile in np.ndindex(self.tiles.tile_assignment_dimensions)]

    @property
    def devices(self) -> tuple[int, ...]:
        """The number of the device that has each part."""
        return self.tiles.tile_assignment_devices

    def parts(self, value: Any) -> list[np.ndarray]:
        """Returns the part [*part_shape] of each of `devices`; copies are the same object.

        `value` is [*shape] of any dtype; it may be an object that is read slice by slice.
        """
        different = dict.fromkeys(self._tiles)
        parts = {tile: self._part(value, self._index(tile)) for tile in different}
        return [parts[tile] for tile in self._tiles]

    def _part(self, value: Any, index: tuple[slice, ...]) -> np.ndarray:
        if self._rows is not None:
            return read_rows(value, index, self._rows)
        return pad_part(value, index, self.part_shape)

    def whole(self, parts: Sequence[Any]) -> np.ndarray:
        """Returns the tensor [*shape] of its parts; if a part has copies, it reads the first.

        Parts are TensorFlow's tensors or variables [*part_shape] in the order of `devices`.
        """
        first = dict(zip(reversed(self._tiles), reversed(parts), strict=True))
        value = np.empty(self.padded, parts[0].dtype.as_numpy_dtype)
        for tile, part in first.items():
            value[self._index(tile)] = part.numpy()
        if self._rows is None:
            return value[tuple(map(slice, self.shape))]
        tensor = np.empty(self.shape, value.dtype)
        every = tuple(map(slice, [0] * value.ndim, value.shape))
        for index, elements in split_rows(value, every, self._rows, self.shape):
            tensor[index] = elements
        return tensor

    def _index(self, tile: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(slice(i * n, (i + 1) * n) for i, n in zip(tile, self.part_shape, strict=True))


class ShardedVariable:
    """A variable with a part on each core."""

    def __init__(self, cut: Cut, value: Any, devices: Sequence[str]) -> None:
        """Puts its first value, [*cut.shape], on the cores; arguments as for `put_parts`."""
        self.cut = cut
        self._parts = put_parts(tf.Variable, cut, value, devices)

    def handle(self) -> tf.Tensor:
        """Returns the scalar handle for `read` and `write`; call it outside of their program."""
        return join_parts([part.handle for part in self._parts], self.cut)

    def read(self, handle: tf.Tensor) -> tf.Tensor:
        """Returns the value, [*cut.inside]."""
        return remove_padding(
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=self.dtype), self.cut
        )

    def write(self, handle: tf.Tensor, value: tf.Tensor) -> None:
        """Assigns a value, [*cut.inside] of type `dtype`."""
        if self.cut.inside != self.cut.padded:
            sizes = zip(self.cut.padded, self.cut.inside, strict=True)
            value = tf.pad(value, [(0, padded - size) for padded, size in sizes])
        value = _with_sharding(value, self.cut.tiles, use_sharding_op=True)
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def load(self, value: Any) -> None:
        """Assigns a value from the host, [*cut.shape] of type `dtype`."""
        for variable, part in zip(self._parts, self.cut.parts(value), strict=True):
            variable.assign(part)

    def numpy(self) -> np.ndarray:
        """Returns the value on the host, [*cut.shape]."""
        return self.cut.whole(self._parts)

    @property
    def dtype(self) -> tf.DType:
        """The type of the elements."""
        return self._parts[0].dtype


def put_parts(
    make: Callable[[Any], Any], cut: Cut, value: Any, devices: Sequence[str]
) -> list[Any]:
    """Returns the parts of a tensor in tile order, each made on its device.

    `make` is `tf.constant` or `tf.Variable`. `value`, [*cut.shape] of any dtype, may be read slice
    by slice; `devices` are TensorFlow's names of the devices of the mesh.
    """
    parts = []
    for device, part in zip(cut.devices, cut.parts(value), strict=True):
        with tf.device(devices[device]):
            parts.append(make(part))
    return parts


def join_parts(parts: Sequence[tf.Tensor], cut: Cut) -> tf.Tensor:
    """Returns the tensor [*cut.padded], or the handle of such a variable, of all parts together.

    Parts are tensors [*cut.part_shape], or handles of such variables, in tile order.
    """
    dims = [] if cut.tiles.is_replicated else list(cut.tiles.tile_assignment_dimensions)
    tensor = tf.raw_ops.TPUPartitionedInputV2(inputs=list(parts), partition_dims=dims)
    return _with_sharding(tensor, cut.tiles)


def remove_padding(value: tf.Tensor, cut: Cut) -> tf.Tensor:
    """Returns a tensor [*cut.padded] without its padding, as [*cut.inside]."""
    return value if cut.inside == cut.padded else value[tuple(map(slice, cut.inside))]


def _with_sharding(x: tf.Tensor, tiles: Tiles, *, use_sharding_op: bool = False) -> Any:
    """Returns a tensor with a sharding that names every device, as the TPU compiler reads it.

    Without `use_sharding_op`, the operation that made `x` gets the sharding as an attribute.
    """
    from tensorflow.python.compiler.xla.experimental import xla_sharding

    if tiles.is_replicated:
        return xla_sharding.replicate(x, use_sharding_op=use_sharding_op)
    make = xla_sharding.partial_tile if tiles.replicate_on_last_tile_dim else xla_sharding.tile
    return make(x, tiles.tile_assignment, use_sharding_op=use_sharding_op)
