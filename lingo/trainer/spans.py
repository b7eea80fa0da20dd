"""Spans: steps that one call of the program does, up to the next step at which something is due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def spans(
    start: int, stop: int, *, size: int, due: Sequence[int], bounds: Sequence[int] = ()
) -> Iterator[range]:
    """Yields the ranges of steps that are done together.

    Args:
        start: the number of steps already done.
        stop: the number of steps at the end.
        size: the largest number of steps in a span.
        due: a span ends at every multiple of each of these numbers.
        bounds: a span ends at each of these steps.
    """
    while start < stop:
        ends = [(start // every + 1) * every for every in due] + [b for b in bounds if b > start]
        end = min(start + size, stop, *ends)
        yield range(start, end)
        start = end
