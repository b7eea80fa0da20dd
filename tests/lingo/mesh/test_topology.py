"""The shape of a mesh."""

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.mesh.topology import AXES, topology


def test_axes_that_are_not_named_have_size_one():
    mesh = topology({"model": 4, "data": 2})
    assert mesh.axes == AXES
    assert AXES == ("stage", "data", "expert", "sequence", "height", "width", "model")
    assert mesh.shape == (1, 2, 1, 1, 1, 1, 4)
    assert mesh.num_devices == 8


def test_devices_that_differ_along_the_last_axis_are_neighbours():
    mesh = topology({"data": 2, "model": 4})
    np.testing.assert_array_equal(mesh.ids().squeeze(), [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_some_axes_together_split_in_the_product_of_their_sizes():
    mesh = topology({"data": 2, "expert": 3, "model": 4})
    assert [mesh.size(axes) for axes in ((), ("data",), ("expert", "data"))] == [1, 2, 6]


def test_a_mesh_prints_the_axes_it_has():
    assert str(topology({"data": 2, "model": 4})) == "data=2, model=4"
    assert str(topology({})) == "1 device"


def test_unknown_axes_and_sizes_below_one_are_refused():
    with pytest.raises(ParamError, match=r"'dat' is not an axis of a mesh.*Did you mean 'data'"):
        topology({"dat": 2})
    with pytest.raises(ParamError, match="'data' has 0 devices"):
        topology({"data": 0})
