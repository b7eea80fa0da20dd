"""Prefetching of batches in background threads.

Axes: B examples.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Self

import numpy as np

from lingo.data.input import Input

DEPTH = 2
"""How many items are ready or being made, in addition to the one in use."""

THREADS = 3
"""How many threads make batches if the input allows it, as some of them wait for files."""


class Item(NamedTuple):
    """Batches of consecutive steps."""

    steps: range
    batches: dict[str, np.ndarray]  # {name: [number of steps, B, ...]}


class _Pending(NamedTuple):
    """An item that is being made."""

    steps: range
    batches: list[Future[dict[str, np.ndarray]]]
    item: Future[Item]

    def cancel(self) -> None:
        for future in (self.item, *self.batches):
            future.cancel()


class Prefetch:
    """Iterates over an input's batches, prefetched by one or (if the input allows it) more threads.

        with Prefetch(input, spans=[range(0, 10), range(10, 15)]) as items:
            for steps, batches in items: ...

    An error in a thread is raised where the batch would have been returned. The end of the `with`
    block does not wait for the threads, which may read from a disk that does not answer.

    Args:
        spans: ranges of steps; the batches of a range are stacked into one item, or into several
            if their shapes differ.
        offset: number of batches to skip: step s gets batch s + offset.
        rows: maps the number of examples in a batch to the slice to read; None reads all.
        depth: number of items that are ready or being made, in addition to the one in use; more if
            several threads would be idle otherwise.
    """

    def __init__(
        self,
        input: Input,
        *,
        spans: Iterable[range],
        offset: int = 0,
        rows: Callable[[int], slice] | None = None,
        depth: int = DEPTH,
    ) -> None:
        if depth < 1:
            raise ValueError(f"{depth=} is not positive")
        self._input, self._rows, self._depth = input, rows, depth
        num_threads = THREADS if input.allows_threads() else 1
        self._least_batches = num_threads + 1 if num_threads > 1 else 0  # batches ready or in work
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="input")
        self._stacker = ThreadPoolExecutor(1, thread_name_prefix="input-stack")
        self._pending: collections.deque[_Pending] = collections.deque()
        self.restart(spans, offset=offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        if not self._pending:
            raise StopIteration
        item = self._pending.popleft().item.result()
        self._fill()
        return item

    def restart(self, spans: Iterable[range], *, offset: int) -> None:
        """Continues with other steps and another offset; drops the prefetched items."""
        for pending in self._pending:
            pending.cancel()
        self._pending.clear()
        self._offset = offset
        self._spans = (
            part for span in spans for part in _same_shape_spans(span, self._input, offset)
        )
        self._fill()

    def close(self) -> None:
        """Ends each thread after its current item, without waiting; there are no more items."""
        self._pending.clear()
        self._spans = iter(())
        for executor in (self._threads, self._stacker):
            executor.shutdown(wait=False, cancel_futures=True)

    def _fill(self) -> None:
        """Starts items until there are enough, or no more spans."""
        while len(self._pending) < self._depth or self._num_batches() < self._least_batches:
            steps = next(self._spans, None)
            if steps is None:
                return
            batches = [self._threads.submit(self._batch, step + self._offset) for step in steps]
            item = self._stacker.submit(_stack, steps, batches)
            self._pending.append(_Pending(steps, batches, item))

    def _num_batches(self) -> int:
        return sum(len(pending.steps) for pending in self._pending)

    def _batch(self, number: int) -> dict[str, np.ndarray]:
        if self._rows is None:
            batch = self._input.batch(number)
        else:
            batch = self._input.batch(number, rows=self._rows(self._input.num_rows(number)))
        self._input.check_batch(batch)
        return batch


def _stack(steps: range, batches: Iterable[Future[dict[str, np.ndarray]]]) -> Item:
    """Waits for batches that are being made, and returns them as an item."""
    made = [batch.result() for batch in batches]
    if len(made) == 1:  # not copied
        return Item(steps, {name: array[None] for name, array in made[0].items()})
    return Item(steps, {name: np.stack([batch[name] for batch in made]) for name in made[0]})


def _same_shape_spans(span: range, input: Input, offset: int) -> Iterator[range]:
    """Yields the parts of a span in which all batches have the same shapes."""
    for _, group in itertools.groupby(span, lambda step: input.shape_id(step + offset)):
        steps = list(group)
        yield range(steps[0], steps[-1] + 1)
