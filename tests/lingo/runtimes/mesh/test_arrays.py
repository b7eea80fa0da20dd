"""Tensors in parts: they come back as they were, whatever does not divide."""

import jax
import numpy as np
import pytest

from lingo.mesh.split import Axes, Split, whole
from lingo.mesh.topology import topology
from lingo.runtimes.mesh.arrays import Place
from lingo.runtimes.mesh.engine import device_mesh

MESH = topology({"data": 2, "model": 4})


class Lazy:
    """An array on a disk: only what is sliced is read."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape, self.num_read = array, array.shape, 0

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        part = self._array[index]
        self.num_read += part.size
        return part


def place(shape: tuple[int, ...], *axes: Axes) -> Place:
    return Place(shape, Split(axes), MESH, device_mesh(MESH))


CASES = [
    ((8, 6), ("model",), ()),
    ((7, 5), ("model",), ("data",)),
    ((3, 2), ("model",), ()),  # one part is empty
    ((9,), ("data", "model")),
    ((2, 3), (), ()),
    ((),),
]


@pytest.mark.parametrize(("shape", "axes"), [(shape, axes) for shape, *axes in CASES])
def test_a_tensor_comes_back_as_it_was(shape: tuple[int, ...], axes: list[Axes]) -> None:
    here = place(shape, *axes)
    value = np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    array = here.put(value)
    assert array.shape == here.padded
    np.testing.assert_array_equal(here.whole(array), value)
    assert np.asarray(array).sum() == value.sum()  # padding is zero
    cut = jax.jit(here.without_padding)(array)
    np.testing.assert_array_equal(cut, value)
    np.testing.assert_array_equal(jax.jit(here.with_padding)(cut), array)
    saved = np.zeros(shape, np.float32)
    for index, part in here.parts(array).shards:  # every element once
        saved[index] += part
    np.testing.assert_array_equal(saved, value)


def test_a_tensor_in_rows_comes_back_as_it_was():
    split, shape = Split(((), ("model",), ()), ("data",), 1), (3, 7, 5)
    here = Place(shape, split, MESH, device_mesh(MESH))
    value = Lazy(np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape))
    array = here.put(value)
    assert array.shape == here.padded == (3, 4, 10)
    assert array.addressable_shards[0].data.shape == (3, 1, 5)
    assert value.num_read == 3 * 7 * 5
    whole = here.whole(array)
    np.testing.assert_array_equal(whole, value[:, :, :])
    saved = np.zeros(shape, np.float32)
    for index, part in here.parts(array).shards:  # every element once
        saved[index] += part
    np.testing.assert_array_equal(saved, whole)
    assert here.without_padding(array) is here.with_padding(array) is array


def test_a_lazy_tensor_is_read_once():
    value = Lazy(np.ones([8, 6], np.float32))
    place((8, 6), ("model",), ()).put(value)
    assert value.num_read == 48


def test_a_copy_on_the_host_is_one():
    here = place((4,), ())
    value = np.ones(4, np.float32)
    array = here.put(value)
    value[:] = 2
    copy = here.whole(array)
    assert copy is not None
    copy[:] = 3
    assert np.asarray(array).tolist() == [1, 1, 1, 1]


def test_a_process_without_all_parts_has_no_whole():
    here = place((8,), ("model",))

    class Half:
        dtype = np.float32

        def __init__(self, array: jax.Array) -> None:
            self.addressable_shards = array.addressable_shards[:2]

    assert here.whole(Half(here.put(np.ones(8, np.float32)))) is None
    assert Place((8,), whole(1), MESH, device_mesh(MESH)).padded == (8,)
