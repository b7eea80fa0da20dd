"""Which steps are done together: as many as asked for, but none past where something is due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def spans(
    start: int, stop: int, *, size: int, due: Sequence[int], bounds: Sequence[int] = ()
) -> Iterator[range]:
    """Yields the steps done together.

    Args:
        start: steps done.
        stop: steps to do in all.
        size: the most done together.
        due: a span ends at every multiple of these,
        bounds: and at each of these.
    """
    while start < stop:
        ends = [(start // every + 1) * every for every in due] + [b for b in bounds if b > start]
        end = min(start + size, stop, *ends)
        yield range(start, end)
        start = end
