"""However many replicas share a batch, every row is computed once, in order."""

import itertools

import numpy as np
import pytest

from lingo.runtimes.replicated.shares import Shares

CASES = list(itertools.product([1, 2, 3, 7, 12], [1, 2, 4], [1, 2, 3]))


def of_all(num_processes: int, num_replicas: int) -> list[Shares]:
    return [Shares(i, num_processes, num_replicas) for i in range(num_processes)]


def batch(rows: slice, size: int) -> dict[str, np.ndarray]:
    return {"rows": np.arange(size)[rows], "weights": np.ones(size, "f")[rows]}


@pytest.mark.parametrize(("size", "processes", "replicas"), CASES)
def test_replicas_have_equally_many_rows_and_what_fills_up_has_weight_0(size, processes, replicas):
    everything = of_all(processes, replicas)
    split = [
        one.split(batch(one.example_slice(size), size), one.largest(size)) for one in everything
    ]
    weights = [array for one in split for array in one["weights"]]
    assert len({len(array) for array in weights}) == 1
    assert len(weights) == processes * replicas
    assert np.concatenate(weights).sum() == size


@pytest.mark.parametrize(("size", "processes", "replicas"), CASES)
def test_processes_have_every_row_once_and_joining_removes_padding(size, processes, replicas):
    everything = of_all(processes, replicas)
    sizes = [len(np.arange(size)[one.example_slice(size)]) for one in everything]
    assert max(sizes) == everything[0].largest(size)
    split = [
        one.split(batch(one.example_slice(size), size), max(sizes), repeat=True)["rows"]
        for one in everything
    ]
    rows = np.concatenate([array for one in split for array in one])
    np.testing.assert_array_equal(everything[0].join(rows, sizes), np.arange(size))


def test_the_last_row_may_be_repeated():
    first, second = Shares(0, 1, 2).split({"x": np.array([[5], [6], [7]])}, 3, repeat=True)["x"]
    assert (first.tolist(), second.tolist()) == ([[5], [6]], [[7], [7]])


def test_a_replica_has_as_many_rows_as_its_parts_need():
    assert Shares(0, 1, 2).replica_size(7, multiple_of=3) == 6
    found = Shares(0, 1, 2).split({"x": np.ones([4, 7])}, 7, axis=1, multiple_of=3)["x"]
    assert [part.sum() for part in found] == [24, 4]


@pytest.mark.parametrize("num_processes", [1, 2, 3, 8])
@pytest.mark.parametrize("num_examples", [1, 13, 15])
def test_an_evaluation_is_as_many_steps_in_every_process_and_none_reads_more_than_its_share(
    num_examples, num_processes
):
    batch_size = 5
    starts = range(0, num_examples, batch_size)
    assert len(starts) == -(-num_examples // batch_size)
    counted = np.zeros(num_examples, int)
    for index in range(num_processes):
        shares = Shares(index=index, num_processes=num_processes, num_replicas=2)
        for start in starts:
            size = min(batch_size, num_examples - start)
            own = np.arange(start, start + size)[shares.example_slice(size)]
            counted[own] += 1
            assert len(own) <= shares.largest(batch_size) == -(-batch_size // num_processes)
    assert (counted == 1).all()
