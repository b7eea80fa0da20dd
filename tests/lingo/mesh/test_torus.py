"""Devices of a mesh on a TPU: each has a core of its own, and inner axes are near."""

import itertools
import math

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.mesh.topology import topology
from lingo.mesh.torus import coordinates

TORI = [(1, 1, 1, 1), (2, 2, 1, 2), (4, 4, 4, 1), (2, 2, 4, 1), (8, 8, 1, 2), (2, 3, 1, 2)]


def meshes(cores):
    """Returns every mesh of so many devices that has up to three axes."""
    sizes = [n for n in range(1, cores + 1) if cores % n == 0]
    return [
        topology({"stage": a, "data": b, "model": c})
        for a, b, c in itertools.product(sizes, repeat=3)
        if a * b * c == cores
    ]


@pytest.mark.parametrize("torus", TORI)
def test_every_core_is_one_device_inner_ones_are_neighbours_and_outer_axes_repeat_them(torus):
    every = sorted(itertools.product(*map(range, torus)))
    for mesh in meshes(math.prod(torus)):
        found = coordinates(mesh, torus)
        assert sorted(map(tuple, found.tolist())) == every
        blocks = found.reshape(-1, mesh.shape[-1], len(torus))
        assert (np.abs(np.diff(blocks, axis=1)).sum(-1) == 1).all(), mesh
        repeated = np.broadcast_to(blocks[0], blocks.shape)
        np.testing.assert_array_equal(blocks - blocks[:, :1], repeated)


def test_the_cores_of_a_chip_come_first():
    found = coordinates(topology({"data": 16, "model": 2}), (4, 4, 1, 2)).reshape(16, 2, 4)
    np.testing.assert_array_equal(found[:, 0, :3], found[:, 1, :3])


def test_an_axis_takes_a_whole_row_or_plane_of_chips_if_that_has_its_size():
    rows = coordinates(topology({"data": 8, "model": 16}), (8, 8, 1, 2)).reshape(8, 16, 4)
    np.testing.assert_array_equal(rows[:, :, 1], np.repeat(np.arange(8)[:, None], 16, axis=1))
    planes = coordinates(topology({"data": 4, "model": 16}), (4, 4, 4, 1)).reshape(4, 16, 4)
    np.testing.assert_array_equal(planes[:, :, 2], np.repeat(np.arange(4)[:, None], 16, axis=1))


def test_an_axis_that_fits_no_row_is_a_box():
    found = coordinates(topology({"data": 16, "model": 8}), (8, 8, 1, 2))[:8]
    assert found.max(axis=0).tolist() == [1, 1, 0, 1]


def test_the_example_of_the_file():
    found = coordinates(topology({"data": 2, "model": 4}), (2, 2, 1, 2)).tolist()
    assert found[:4] == [[0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 1], [1, 0, 0, 0]]
    assert found[4:] == [[x, 1, z, core] for x, _, z, core in found[:4]]


def test_a_mesh_takes_all_of_a_tpu():
    with pytest.raises(
        ParamError, match=r"8 devices \(data=2, model=4\) .* 16 cores, 2 x 4 x 1 x 2"
    ):
        coordinates(topology({"data": 2, "model": 4}), (2, 4, 1, 2))
