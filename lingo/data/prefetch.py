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
"""How many items are ready or being made by one thread, besides the one in use."""


class Item(NamedTuple):
    """Batches of consecutive steps."""

    steps: range
    batches: dict[str, np.ndarray]  # {name: [number of steps, B, ...]}


class Prefetch:
    """Iterates over the batches of an input, which threads prefetch, as many as it allows.

        with Prefetch(input, spans=[range(0, 10), range(10, 15)]) as items:
            for steps, batches in items: ...

    An error in a thread is raised where the batch would have been returned. The end of the `with`
    block does not wait for the threads, which may read from a disk that does not answer.

    Args:
        spans: ranges of steps; the batches of a range are stacked into one item, or into several
            if their shapes differ.
        offset: number of batches to skip: step s gets batch s + offset.
        rows: maps the number of examples in a batch to the slice to read; None reads all.
        depth: number of items that are ready or being made, besides the one in use; by default
            `DEPTH`, and one more for each further thread.
    """

    def __init__(
        self,
        input: Input,
        *,
        spans: Iterable[range],
        offset: int = 0,
        rows: Callable[[int], slice] | None = None,
        depth: int | None = None,
    ) -> None:
        if depth is not None and depth < 1:
            raise ValueError(f"{depth=} is not positive")
        self._input, self._rows = input, rows
        self._depth = depth or DEPTH + input.num_threads - 1
        self._threads = ThreadPoolExecutor(input.num_threads, thread_name_prefix="input")
        self._pending: collections.deque[Future[Item]] = collections.deque()
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
        item = self._pending.popleft().result()
        self._submit()
        return item

    def restart(self, spans: Iterable[range], *, offset: int) -> None:
        """Continues with other steps and another offset; drops the prefetched items."""
        for item in self._pending:
            item.cancel()
        self._pending.clear()
        self._offset = offset
        self._spans = (
            part for span in spans for part in _same_shape_spans(span, self._input, offset)
        )
        for _ in range(self._depth):
            self._submit()

    def close(self) -> None:
        """Ends each thread after its current item, without waiting; there are no more items."""
        self._pending.clear()
        self._spans = iter(())
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _submit(self) -> None:
        steps = next(self._spans, None)
        if steps is not None:
            self._pending.append(self._threads.submit(self._make, steps, self._offset))

    def _make(self, steps: range, offset: int) -> Item:
        batches = [self._batch(step + offset) for step in steps]
        if len(batches) == 1:  # not copied
            return Item(steps, {name: array[None] for name, array in batches[0].items()})
        return Item(steps, {name: np.stack([b[name] for b in batches]) for name in batches[0]})

    def _batch(self, number: int) -> dict[str, np.ndarray]:
        if self._rows is None:
            batch = self._input.batch(number)
        else:
            batch = self._input.batch(number, rows=self._rows(self._input.num_rows(number)))
        self._input.check_batch(batch)
        return batch


def _same_shape_spans(span: range, input: Input, offset: int) -> Iterator[range]:
    """Yields the parts of a span in which all batches have the same shapes."""
    for _, group in itertools.groupby(span, lambda step: input.shape_id(step + offset)):
        steps = list(group)
        yield range(steps[0], steps[-1] + 1)
