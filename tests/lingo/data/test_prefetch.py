"""Prefetched batches are those of the input, in order; errors arrive and threads end."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from lingo.data.array_spec import ArraySpec
from lingo.data.files import DataError
from lingo.data.input import Input
from lingo.data.prefetch import Prefetch


class Counting(Input):
    """Says its step."""

    seconds: float = 0.0  # how long a batch takes
    fails_at: int | None = None  # step that cannot be read

    def setup(self) -> None:
        self.made = []

    def specs(self) -> dict[str, ArraySpec]:
        size = self.p.batch_size
        return {"rows": ((size,), "int32"), "x": ((size,), "int64")}

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        time.sleep(self.p.seconds)
        if step == self.p.fails_at:
            raise DataError(f"step {step} is damaged")
        self.made.append(step)
        indices = np.arange(self.p.batch_size, dtype=np.int32)[rows]
        return {"rows": indices, "x": np.full([len(indices)], step)}


def counting(**fields):
    return Counting.params(batch_size=2, **fields).build()


def one_by_one(steps):
    return (range(step, step + 1) for step in range(steps))


def left_threads():
    """Returns the threads of inputs that do not end by themselves."""
    threads = [t for t in threading.enumerate() if t.name.startswith("input")]
    for thread in threads:
        thread.join(timeout=60)
    return [t for t in threads if t.is_alive()]


def test_items_are_stacked_batches_in_order():
    with Prefetch(counting(), spans=[range(3, 5), range(5, 6)]) as items:
        got = [(steps, batches["x"].tolist()) for steps, batches in items]
    assert got == [(range(3, 5), [[3, 3], [4, 4]]), (range(5, 6), [[5, 5]])]


def test_only_the_rows_that_are_wanted_are_made():
    with Prefetch(counting(), spans=[range(2)], rows=lambda size: slice(size - 1, size)) as items:
        assert next(items).batches["x"].tolist() == [[0], [1]]


class Growing(Counting):
    """Has batches of other shapes from step to step."""

    def shape_id(self, step: int) -> int:
        return step // 3

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        size = 1 + self.shape_id(step)
        return {"rows": np.arange(size, dtype=np.int32), "x": np.full([size], step)}


def test_an_item_ends_where_shapes_change():
    input = Growing.params(batch_size=1).build()
    with Prefetch(input, spans=[range(1, 5), range(5, 8)]) as items:
        got = [(steps, batches["x"].shape) for steps, batches in items]
    assert got == [
        (range(1, 3), (2, 1)),
        (range(3, 5), (2, 2)),
        (range(5, 6), (1, 2)),
        (range(6, 8), (2, 3)),
    ]


class Meeting(Counting):
    """Makes two batches at a time: each waits for another one."""

    thread_safe = True

    def setup(self) -> None:
        super().setup()
        self.barrier = threading.Barrier(2, timeout=60)

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        self.barrier.wait()
        return super().batch(step, rows=rows)


@pytest.mark.parametrize("spans", [list(one_by_one(6)), [range(4), range(4, 6)]])
def test_an_input_that_allows_it_makes_batches_in_several_threads_in_order(spans):
    input = Meeting.params(batch_size=1).build()
    with Prefetch(input, spans=spans) as items:
        got = [x for _, batches in items for x in batches["x"].ravel().tolist()]
    assert got == [0, 1, 2, 3, 4, 5]
    assert not left_threads()


class Sooner(Meeting):
    """Fails at step 1 while step 0 waits."""

    thread_safe = True

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        if step == 1:
            raise DataError("step 1 is damaged")
        if step == 0:
            self.barrier.wait()
        return Counting.batch(self, step, rows=rows)


def test_an_error_does_not_overtake_batches_before_it():
    input = Sooner.params(batch_size=1).build()
    with Prefetch(input, spans=one_by_one(9)) as items:
        threading.Thread(target=input.barrier.wait).start()
        assert next(items).steps == range(1)
        with pytest.raises(DataError, match="step 1 is damaged"):
            next(items)


class Inherited(Meeting):
    """A class of one's own that changes another one."""


def test_subclasses_do_not_inherit_that_threads_are_allowed():
    assert Meeting.params(batch_size=1).build().allows_threads()
    assert not Inherited.params(batch_size=1).build().allows_threads()


def test_no_more_than_depth_items_are_made_ahead():
    input = counting()
    with Prefetch(input, spans=one_by_one(100), depth=3) as items:
        next(items)
        deadline = time.monotonic() + 10
        while len(input.made) < 4 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert input.made == [0, 1, 2, 3]


def test_an_error_in_the_thread_arrives_where_its_batch_would_have():
    with Prefetch(counting(fails_at=2), spans=one_by_one(9)) as items:
        assert [next(items).steps, next(items).steps] == [range(1), range(1, 2)]
        with pytest.raises(DataError, match="step 2 is damaged") as caught:
            next(items)
    assert any(entry.name == "batch" for entry in caught.traceback)
    assert not left_threads()


def test_closing_ends_the_thread_and_the_items():
    input = counting(seconds=0.1)
    items = Prefetch(input, spans=one_by_one(10**9), depth=5)
    next(items)
    items.close()
    items.close()
    assert not left_threads()
    assert len(input.made) < 5
    assert list(items) == []


def test_depth_must_be_positive():
    with pytest.raises(ValueError, match="depth=0"):
        Prefetch(counting(), spans=[], depth=0)


def test_what_was_made_ahead_is_dropped_at_a_restart():
    input = counting(fails_at=2)
    with Prefetch(input, spans=one_by_one(9), depth=3) as items:
        next(items)
        items.restart(one_by_one(2), offset=5)
        got = [(steps.start, batches["x"][0, 0]) for steps, batches in items]
    assert got == [(0, 5), (1, 6)]


def test_shapes_are_those_of_the_batches_after_those_passed_over():
    growing = Growing.params(batch_size=2).build()
    with Prefetch(growing, spans=[range(0, 3)], offset=2) as items:
        assert [steps for steps, _ in items] == [range(0, 1), range(1, 3)]
