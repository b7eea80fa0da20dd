"""Rows of a batch: every part has the same size, every process what its devices hold."""

import itertools
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from lingo.mesh.topology import topology
from lingo.runtimes.mesh.engine import device_mesh
from lingo.runtimes.mesh.rows import Rows, remove_padding


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
            "lingo.runtimes.mesh.rows.engine",
            lambda: SimpleNamespace(process_index=lambda: 0, make_array_from_callback=made),
        )
        patch.setattr(several, "sharding", lambda *, axis: axis)
        found = several.put(empty, size=3)["x"]
    np.testing.assert_array_equal(found, np.zeros([2, 2]))


def test_without_an_axis_of_the_batch_every_device_has_all_rows():
    array = rows(model=8).put({"x": np.arange(3)}, size=3)["x"]
    assert {shard.data.shape for shard in array.addressable_shards} == {(3,)}
    assert len(jax.devices()) == 8
