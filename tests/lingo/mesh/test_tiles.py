"""Tile assignments: those of TensorFlow and Lingvo, and XLA's own way of writing them."""

import itertools

import numpy as np
import pytest
from jaxlib.xla_client import HloSharding, OpSharding
from tensorflow.python.compiler.xla.experimental import xla_sharding

from lingo.mesh.split import Split
from lingo.mesh.tiles import Iota, Tiles, tiles
from lingo.mesh.topology import AXES, topology

SHAPES = [(8,), (2, 4), (4, 1), (2, 2, 2), (2, 3, 4), (1, 1)]


def meshes(shape):
    return topology(dict(zip(AXES, shape, strict=False)))


def splits(shape, rank):
    """Yields every dims_mapping of a tensor that uses no mesh axis twice, and its tiles."""
    used = [axis for axis, size in enumerate(shape) if size > 1]
    for mapping in itertools.product([-1, *used], repeat=rank):
        if len(set(mapping) - {-1}) == sum(axis >= 0 for axis in mapping):
            split = Split(tuple((AXES[axis],) if axis >= 0 else () for axis in mapping))
            yield list(mapping), tiles(split, meshes(shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_are_those_of_tensorflow(shape):
    squeezed = np.arange(np.prod(shape)).reshape([size for size in shape if size > 1])
    for mapping, found in splits(shape, 3):
        axes = [sum(size > 1 for size in shape[:axis]) if axis >= 0 else -1 for axis in mapping]
        proto = xla_sharding.mesh_split_sharding(squeezed, axes).proto
        if not found.is_replicated:
            assert list(found.tile_assignment_dimensions) == list(proto.tile_assignment_dimensions)
            assert list(found.tile_assignment_devices) == list(proto.tile_assignment_devices)
            assert found.replicate_on_last_tile_dim == proto.replicate_on_last_tile_dim


@pytest.mark.parametrize("shape", SHAPES)
def test_xla_writes_the_same_compact_form_and_reads_it_back(shape):
    for mapping, found in splits(shape, 3):
        if found.is_replicated:
            continue
        used = [axis for axis in mapping if axis >= 0]
        sharding = HloSharding.iota_tile(
            dims=found.tile_assignment_dimensions,
            reshape_dims=shape,
            transpose_perm=[*used, *(axis for axis in range(len(shape)) if axis not in used)],
            subgroup_types=[OpSharding.Type.REPLICATED] * found.replicate_on_last_tile_dim,
        )
        assert str(found) == str(sharding)
        read = HloSharding.from_string(str(found)).tile_assignment_devices()
        assert list(found.tile_assignment_devices) == read


@pytest.mark.parametrize(
    ("shape", "split", "text"),
    [
        ((8, 256), [("stage",), ("data",)], "{devices=[8,256]<=[2048]}"),
        ((8, 256), [("data",), ("stage",)], "{devices=[256,8]<=[8,256]T(1,0)}"),
        ((8, 256), [("stage", "data"), ()], "{devices=[2048,1]<=[2048]}"),
        ((8, 256), [("data", "stage")], "{devices=[2048]<=[8,256]T(1,0)}"),
        ((8, 256), [(), ("data",)], "{devices=[1,256,8]<=[8,256]T(1,0) last_tile_dim_replicate}"),
        ((2, 2, 2), [("data",), ()], "{devices=[2,1,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}"),
        (
            (2, 2, 2),
            [("expert",), ("stage",)],
            "{devices=[2,2,2]<=[4,2]T(1,0) last_tile_dim_replicate}",
        ),
        ((8, 256), [(), ()], "{replicated}"),
    ],
)
def test_the_text_is_as_short_as_can_be(shape, split, text):
    assert str(tiles(Split(tuple(split)), meshes(shape))) == text


def test_devices_in_no_order_are_listed():
    found = Tiles(np.array([[0, 1], [3, 2]]))
    assert found.iota() is None
    assert str(found) == "{devices=[2,2]0,1,3,2}"


def test_one_device_counts_from_zero_along_one_axis():
    assert Tiles(np.array([[0]])).iota() == Iota((1,), (0,))


def test_tiles_give_each_device_the_part_at_its_place_in_the_mesh():
    mesh = topology({"stage": 2, "data": 3, "model": 4})
    found = tiles(Split((("model", "stage"), ("data",))), mesh).tile_assignment
    for device in range(24):
        stage, data, model = np.unravel_index(device, (2, 3, 4))
        assert found[2 * model + stage, data] == device
