"""Tile assignments: those of TensorFlow and Lingvo, and XLA's own way of writing them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from jaxlib.xla_client import HloSharding, OpSharding
from tensorflow.python.compiler.xla.experimental import xla_sharding

from lingo.config.params import ParamError
from lingo.mesh.split import Split, whole
from lingo.mesh.tiles import Iota, Tiles, mesh_split, tiles
from lingo.mesh.topology import topology

TWO_BY_FOUR = np.arange(8).reshape(2, 4)
SHAPES = [(8,), (2, 4), (4, 1), (2, 2, 2), (2, 3, 4), (1, 1)]


def mappings(num_axes: int, rank: int) -> list[list[int]]:
    """Returns every dims_mapping of a tensor that uses no mesh axis twice."""
    every = itertools.product(range(-1, num_axes), repeat=rank)
    return [list(m) for m in every if len(set(m) - {-1}) == sum(axis >= 0 for axis in m)]


def test_the_two_axes_of_a_mesh_may_change_places() -> None:
    found = mesh_split(TWO_BY_FOUR, [1, 0])
    assert found.tile_assignment_dimensions == (4, 2)
    assert found.tile_assignment_devices == (0, 4, 1, 5, 2, 6, 3, 7)
    assert not found.replicate_on_last_tile_dim


def test_along_mesh_axes_that_are_not_used_a_part_is_replicated() -> None:
    found = mesh_split(TWO_BY_FOUR, [-1, 0])
    assert found.tile_assignment_dimensions == (1, 2, 4)
    assert found.tile_assignment_devices == tuple(range(8))
    assert found.replicate_on_last_tile_dim


@pytest.mark.parametrize("shape", SHAPES)
def test_mesh_split_is_that_of_tensorflow(shape: tuple[int, ...]) -> None:
    mesh = np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape)
    for mapping in mappings(len(shape), 3):
        proto = xla_sharding.mesh_split_sharding(mesh, mapping).proto
        found = mesh_split(mesh, mapping)
        assert list(found.tile_assignment_dimensions) == list(proto.tile_assignment_dimensions)
        assert list(found.tile_assignment_devices) == list(proto.tile_assignment_devices)
        assert found.replicate_on_last_tile_dim == proto.replicate_on_last_tile_dim


@pytest.mark.parametrize("shape", SHAPES)
def test_xla_writes_the_same_compact_form(shape: tuple[int, ...]) -> None:
    mesh = np.arange(np.prod(shape)).reshape(shape)
    for mapping in mappings(len(shape), 3):
        found = mesh_split(mesh, mapping)
        used = [axis for axis in mapping if axis >= 0]
        sharding = HloSharding.iota_tile(
            dims=found.tile_assignment_dimensions,
            reshape_dims=shape,
            transpose_perm=[*used, *(axis for axis in range(len(shape)) if axis not in used)],
            subgroup_types=[OpSharding.Type.REPLICATED] * found.replicate_on_last_tile_dim,
        )
        if not (found.is_replicated or found.tile_assignment_dimensions[-1] == 1):
            assert str(found) == str(sharding)
            assert list(found.tile_assignment_devices) == sharding.tile_assignment_devices()


@pytest.mark.parametrize("shape", SHAPES)
def test_xla_reads_back_the_devices(shape: tuple[int, ...]) -> None:
    mesh = np.random.default_rng(1).permutation(np.prod(shape)).reshape(shape)
    for mapping in mappings(len(shape), 2):
        found = mesh_split(mesh, mapping)
        if not found.is_replicated:
            read = HloSharding.from_string(str(found)).tile_assignment_devices()
            devices = found.tile_assignment
            if found.replicate_on_last_tile_dim:  # in whatever order: XLA sorts them
                devices = np.sort(devices, axis=-1)
            np.testing.assert_array_equal(devices.ravel(), read)


@pytest.mark.parametrize(
    ("shape", "mapping", "text"),
    [
        ((8, 256), [0, 1], "{devices=[8,256]<=[2048]}"),
        ((8, 256), [1, 0], "{devices=[256,8]<=[8,256]T(1,0)}"),
        ((8, 256), [-1, 1], "{devices=[1,256,8]<=[8,256]T(1,0) last_tile_dim_replicate}"),
        ((2, 2, 2), [1, -1], "{devices=[2,1,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}"),
        ((2, 2, 2), [2, 0], "{devices=[2,2,2]<=[4,2]T(1,0) last_tile_dim_replicate}"),
        ((8, 256), [-1, -1], "{replicated}"),
    ],
)
def test_the_text_is_as_short_as_can_be(
    shape: tuple[int, ...], mapping: list[int], text: str
) -> None:
    assert str(mesh_split(np.arange(np.prod(shape)).reshape(shape), mapping)) == text


def test_devices_in_no_order_are_listed() -> None:
    found = Tiles(np.array([[0, 1], [3, 2]]))
    assert found.iota() is None
    assert str(found) == "{devices=[2,2]0,1,3,2}"


def test_one_device_counts_from_zero_along_one_axis() -> None:
    assert Tiles(np.array([[0]])).iota() == Iota((1,), (0,))


def test_a_split_is_tiled_as_its_mesh_axes_stand() -> None:
    mesh = topology({"data": 2, "model": 4})
    assert str(tiles(Split((("model",), ("data",))), mesh)) == "{devices=[4,2]<=[2,4]T(1,0)}"
    assert str(tiles(Split((("data", "model"), ())), mesh)) == "{devices=[8,1]<=[8]}"
    assert str(tiles(Split((("model", "data"),)), mesh)) == "{devices=[8]<=[2,4]T(1,0)}"
    assert tiles(whole(2), mesh).is_replicated


def test_tiles_give_each_device_the_part_at_its_place_in_the_mesh() -> None:
    mesh = topology({"stage": 2, "data": 3, "model": 4})
    found = tiles(Split((("model", "stage"), ("data",))), mesh).tile_assignment
    for device in range(24):
        stage, data, model = np.unravel_index(device, (2, 3, 4))
        assert found[2 * model + stage, data] == device


def test_a_mesh_axis_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        ParamError, match=r"dims_mapping=\[0, 2\]: 2 is neither -1 nor one of the 2"
    ):
        mesh_split(TWO_BY_FOUR, [0, 2])


def test_a_mesh_axis_that_would_cut_twice_is_refused() -> None:
    with pytest.raises(ParamError, match="a mesh axis would cut two axes"):
        mesh_split(TWO_BY_FOUR, [0, 0])
