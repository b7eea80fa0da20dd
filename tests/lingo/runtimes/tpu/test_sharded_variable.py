"""Cut tensors: every device has its part, and the parts are the whole."""

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.mesh.split import Split, whole
from lingo.mesh.topology import topology
from lingo.runtimes.tpu.sharded_variable import Cut

MESH = topology({"data": 2, "model": 4})


@pytest.mark.parametrize(
    "split",
    [
        whole(2),
        Split((("data",), ("model",))),
        Split((("model",), ("data",))),
        Split(((), ("model",))),
        Split((("data", "model"), ())),
        Split(((), ("model",)), ("data",)),
        Split((("data",), ()), ("model",), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(8, 8), (5, 7), (1, 9)])
def test_parts_are_the_whole(split, shape):
    cut, value = Cut(shape, split, MESH), np.random.default_rng(0).normal(size=shape).astype("f")
    parts = cut.parts(value)
    assert {part.shape for part in parts} == {cut.part_shape}
    np.testing.assert_array_equal(cut.whole(list(map(tf.constant, parts))), value)


def test_each_device_has_the_part_at_its_place_in_the_mesh():
    value = np.arange(8 * 4).reshape(8, 4)
    cut = Cut(value.shape, Split((("model",), ("data",))), MESH)
    by_device = dict(zip(cut.devices, cut.parts(value), strict=True))
    assert sorted(by_device) == list(range(8))
    for data in range(2):
        for model in range(4):
            expected = value[2 * model : 2 * model + 2, 2 * data : 2 * data + 2]
            np.testing.assert_array_equal(by_device[4 * data + model], expected)


def test_copies_are_one_array():
    cut = Cut((8, 3), Split((("model",), ())), MESH)
    assert len({id(part) for part in cut.parts(np.ones((8, 3)))}) == 4


def test_a_number_is_on_every_device():
    cut = Cut((), whole(0), MESH)
    parts = cut.parts(np.int32(7))
    assert len(parts) == 8
    assert cut.whole(list(map(tf.constant, parts))) == 7


def test_what_is_beyond_the_shape_is_zero():
    parts = Cut((5,), Split((("model",),)), MESH).parts(np.ones(5))
    assert [part.tolist() for part in parts[::2]] == [[1, 1], [1, 1], [1, 0], [0, 0]]
