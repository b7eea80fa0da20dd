"""The axes of a sweep: each is the left side of an override with the values that it may take.

path=a,b,c                 one of these; a comma in brackets or quotes belongs to its value
path=low..high             a number in the range, ends included; integers if both ends are integers
path=log(low..high)        the same, with numbers spaced evenly in the logarithm
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from lingo.config import override_reader
from lingo.config.params import ParamError

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(?P<log>log\()?\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*(?(log)\))")
_INTEGER = re.compile(r"[+-]?\d+")


class Axis(NamedTuple):
    """A varied field and its values."""

    target: str  # left side of the override
    values: tuple[str, ...]  # texts as a user types them: all of a list, or both ends of a range
    scale: Literal["list", "linear", "log"] = "list"  # a list, or the spacing of a range's numbers

    def __str__(self) -> str:
        if self.scale == "list":
            return f"{self.target}={','.join(self.values)}"
        ends = "..".join(self.values)
        return f"{self.target}=log({ends})" if self.scale == "log" else f"{self.target}={ends}"

    @property
    def is_integer(self) -> bool:
        """Whether a range has only integers, because both its ends are integers."""
        return all(_INTEGER.fullmatch(value) for value in self.values)

    def draw(self, fraction: float) -> str:
        """Returns the value at a fraction of the way through the list or range, in [0, 1)."""
        if self.scale == "list":
            return self.values[int(fraction * len(self.values))]
        low, high = map(float, self.values)
        end = high + self.is_integer
        if self.scale == "log":
            return self.format_number(low * (end / low) ** fraction)
        return self.format_number(low + fraction * (end - low))

    def format_number(self, value: float) -> str:
        """Returns a range's number as text: an integer, or rounded to four digits in the range."""
        low, high = map(float, self.values)
        if self.is_integer:
            return str(min(math.floor(value), int(high)))
        short = value if value in (low, high) else float(f"{value:.4g}")
        return repr(min(max(short, low), high))


def read_axes(texts: Iterable[str]) -> list[Axis]:
    """Reads the axes of a sweep, each from a text `target=values`.

    Raises ParamError if a text has another form, if a value or a target is given twice, or if
    a range holds no number.
    """
    axes: dict[str, Axis] = {}
    for text in texts:
        axis = _read_axis(text)
        if axis.target in axes:
            raise ParamError(f"{axis.target} is swept twice: give all its values in one list")
        axes[axis.target] = axis
    return list(axes.values())


def _read_axis(text: str) -> Axis:
    target, equals, right = override_reader.partition(text, "=")
    if not equals or not target or not right:
        raise ParamError(
            f"{text!r} sweeps nothing: write path=a,b,c or path=low..high or path=log(low..high)"
        )
    if match := _RANGE.fullmatch(right):
        return _read_range(target, match)
    values = override_reader.split(right)
    if "" in values:
        raise ParamError(f"{text!r} has an empty value: write '' for an empty string")
    if repeated := [value for value in values if values.count(value) > 1]:
        raise ParamError(f"{text!r} has {repeated[0]} twice")
    return Axis(target, tuple(values))


def _read_range(target: str, match: re.Match[str]) -> Axis:
    log, *ends = match.groups()
    low, high = map(float, ends)
    if not low < high < math.inf:
        raise ParamError(f"{target}: {'..'.join(ends)} has no numbers in it: write low..high")
    if log and low <= 0:
        raise ParamError(f"{target}: log({'..'.join(ends)}) needs ends above 0")
    number = int if all(_INTEGER.fullmatch(end) for end in ends) else float
    return Axis(target, tuple(repr(number(end)) for end in ends), "log" if log else "linear")
