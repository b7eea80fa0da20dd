"""Counts, values and histograms in the text format of Prometheus.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Family(Protocol):
    """Numbers of one name, which labels tell apart."""

    name: str
    kind: str  # counter, gauge or histogram
    help: str

    def lines(self) -> Iterator[str]:
        """Yields `name{labels} value` for each number."""
        ...


class Counter:
    """Numbers that only grow, one for each combination of labels."""

    kind = "counter"

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        self.name, self.help, self._labels = name, help, labels
        self._values: dict[tuple[str, ...], int] = {}

    def add(self, *labels: str) -> None:
        """Adds one to the number of these values of the labels."""
        self._values[labels] = self._values.get(labels, 0) + 1

    def lines(self) -> Iterator[str]:
        for labels, value in self._values.items():
            yield _line(self.name, dict(zip(self._labels, labels, strict=True)), value)


class Gauge:
    """Numbers that are asked for when the page is: label value -> number."""

    kind = "gauge"

    def __init__(
        self, name: str, help: str, label: str, read: Callable[[], dict[str, float]]
    ) -> None:
        self.name, self.help, self._label, self._read = name, help, label, read

    def lines(self) -> Iterator[str]:
        for label, value in self._read().items():
            yield _line(self.name, {self._label: label}, value)


class Histogram:
    """How often values were at most each bound, for each value of a label; their sum and count."""

    kind = "histogram"

    def __init__(self, name: str, help: str, label: str, bounds: Sequence[float]) -> None:
        self.name, self.help, self._label, self._bounds = name, help, label, bounds
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, label: str, value: float) -> None:
        """Adds a value."""
        counts = self._counts.setdefault(label, [0] * (len(self._bounds) + 1))
        counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sums[label] = self._sums.get(label, 0.0) + value

    def lines(self) -> Iterator[str]:
        for label, counts in self._counts.items():
            total = 0
            for bound, count in zip([*map(str, self._bounds), "+Inf"], counts, strict=True):
                total += count
                yield _line(f"{self.name}_bucket", {self._label: label, "le": bound}, total)
            yield _line(f"{self.name}_sum", {self._label: label}, self._sums[label])
            yield _line(f"{self.name}_count", {self._label: label}, total)


def page(families: Sequence[Family]) -> str:
    """Returns the text of all numbers."""
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        lines += family.lines()
    return "\n".join(lines) + "\n"


def _line(name: str, labels: dict[str, str], value: float) -> str:
    """Returns a line; values of labels are names of signatures, models and statuses."""
    return f"{name}{{{','.join(f'{key}={_quote(text)}' for key, text in labels.items())}}} {value}"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
