"""Tensors in parts come back as they were; each process has the rows that its devices hold."""

import itertools
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from lingo.mesh.split import Axes, Split, whole
from lingo.mesh.topology import topology
from lingo.runtimes.mesh.arrays import ArrayLayout, Rows, remove_padding
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


def place(shape: tuple[int, ...], *axes: Axes) -> ArrayLayout:
    return ArrayLayout(shape, Split(axes), MESH, device_mesh(MESH))


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
    here = ArrayLayout(shape, split, MESH, device_mesh(MESH))
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
    assert ArrayLayout((8,), whole(1), MESH, device_mesh(MESH)).padded == (8,)


def rows(**sizes: int) -> Rows:
    return Rows(device_mesh(topology(sizes)), ("data",) if sizes.get("data", 1) > 1 else ())


class Hosts(Rows):
    """Rows of processes that have some devices each, one after the other."""

    def __init__(self, num_parts: int, spans: list[range]) -> None:
        self._num_parts, self._spans = num_parts, dict(enumerate(spans))


HOSTS = {
    "halves": Hosts(8, [range(0, 4), range(4, 8)]),
    "eighths": Hosts(8, [range(i, i + 1) for i in range(8)]),
    "overlapping": Hosts(3, [range(0, 2), range(1, 3)]),
    "copies": Hosts(2, [range(0, 2), range(0, 2)]),
}


@pytest.mark.parametrize(("name", "size"), [*itertools.product(HOSTS, range(1, 30))])
def test_processes_find_the_size_of_a_batch_in_how_many_rows_each_has(name, size):
    hosts = HOSTS[name]
    own = [range(size)[hosts.example_slice(process, size)] for process in range(len(hosts._spans))]
    assert set().union(*own) == set(range(size))
    assert hosts.size([len(rows) for rows in own]) == size


def test_counts_that_no_batch_has_are_refused():
    with pytest.raises(ValueError, match=r"\[1, 7\] examples"):
        HOSTS["halves"].size([1, 7])


@pytest.mark.parametrize(("axis", "size"), [(0, 8), (0, 6), (0, 1), (1, 5)])
def test_rows_after_the_last_are_zeros_that_a_program_removes(axis, size):
    batch = {"x": np.arange(2, 2 + 3 * size, dtype=np.int32).reshape(size, 3)}
    if axis:
        batch = {"x": np.stack([batch["x"], batch["x"] + 1])}
    padded = rows(data=4, model=2).put(batch, size=size, axis=axis)
    if not axis:
        inside = jax.jit(lambda arrays: remove_padding(arrays, size))(padded)["x"]
        np.testing.assert_array_equal(np.asarray(inside), batch["x"])
    (array,) = padded.values()
    found = np.asarray(array)
    assert found.shape[axis] == -(-size // 4) * 4
    own, rest = np.split(found, [size], axis)
    np.testing.assert_array_equal(own, batch["x"])
    assert not rest.any()
    assert {shard.data.shape[axis] for shard in array.addressable_shards} == {-(-size // 4)}


def test_a_process_without_rows_fills_its_parts_with_zeros():
    several = rows(data=8)
    several._spans = {0: range(4, 8)}  # devices of this process
    empty = {"x": np.zeros([0, 2], np.float32)}

    def made(shape: Any, sharding: Any, part: Any) -> np.ndarray:
        del shape, sharding
        return part((slice(6, 8), slice(0, 2)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "lingo.runtimes.mesh.arrays.engine",
            lambda: SimpleNamespace(process_index=lambda: 0, make_array_from_callback=made),
        )
        patch.setattr(several, "sharding", lambda *, axis: axis)
        found = several.put(empty, size=3)["x"]
    np.testing.assert_array_equal(found, np.zeros([2, 2]))


def test_without_an_axis_of_the_batch_every_device_has_all_rows():
    array = rows(model=8).put({"x": np.arange(3)}, size=3)["x"]
    assert {shard.data.shape for shard in array.addressable_shards} == {(3,)}
    assert len(jax.devices()) == 8
