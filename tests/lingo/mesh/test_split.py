"""How a tensor is split over a mesh."""

from lingo.mesh.split import Split, whole
from lingo.mesh.topology import topology

MESH = topology({"data": 2, "expert": 3, "model": 4})
THREE = Split((("data",), (), ("expert", "model")))


def test_an_axis_is_cut_into_as_many_parts_as_its_mesh_axes_have_devices():
    assert THREE.parts(MESH) == (2, 1, 12)
    assert THREE.part_shape([8, 5, 24], MESH) == (4, 5, 2)


def test_parts_of_a_size_that_does_not_divide_are_rounded_up():
    shape = [7, 5, 25]
    assert THREE.part_shape(shape, MESH) == (4, 5, 3)
    assert THREE.padded_shape(shape, MESH) == (8, 5, 36)
    assert THREE.part_size(shape, MESH) == 60


def test_further_mesh_axes_are_the_innermost():
    added = Split((("model",), ())).cut(0, ("data",))
    assert added == Split((("model", "data"), ()))
    assert added.used_axes() == {"data", "model"}


def test_a_split_prints_its_mesh_axes():
    assert str(THREE) == "[data, -, expert+model]"
    assert str(whole(0)) == "[]"
