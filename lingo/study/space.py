"""What a sweep varies: axes, each the left side of an override with the values it may take.

path=a,b,c                 one of these; a comma in brackets or quotes belongs to its value
path=low..high             a number between, ends included; a whole one if both ends are
path=log(low..high)        the same, evenly in the logarithm
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from lingo.config.overrides import reader
from lingo.config.params import ParamError

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_SPAN = re.compile(rf"(?P<log>log\()?\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*(?(log)\))")
_WHOLE = re.compile(r"[+-]?\d+")


class Choices(NamedTuple):
    """Some values, each as it would be typed.

    Attributes:
        target: the left side of the override.
        values: the right sides.
    """

    target: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.target}={','.join(self.values)}"

    def draw(self, fraction: float) -> str:
        """Returns the value at a fraction of the list, 0 <= fraction < 1."""
        return self.values[int(fraction * len(self.values))]

    @property
    def samples(self) -> tuple[str, ...]:
        """The values that stand for all: what these are, the others are too."""
        return self.values


class Span(NamedTuple):
    """The numbers between two.

    Attributes:
        target: the left side of the override.
        low: the least.
        high: the greatest.
        whole: whether they are whole numbers.
        log: whether they lie evenly in the logarithm.
    """

    target: str
    low: float
    high: float
    whole: bool
    log: bool

    def __str__(self) -> str:
        span = f"{self.text(self.low)}..{self.text(self.high)}"
        return f"{self.target}={f'log({span})' if self.log else span}"

    def draw(self, fraction: float) -> str:
        """Returns the number at a fraction of the way, 0 <= fraction < 1."""
        low, end = self.low, self.high + self.whole
        value = low * (end / low) ** fraction if self.log else low + fraction * (end - low)
        return self.text(value)

    def text(self, value: float) -> str:
        """Returns a number of this span as a person would type it: with four digits if not whole.

        What is rounded stays between the ends.
        """
        if self.whole:
            return str(min(math.floor(value), int(self.high)))
        short = value if value in (self.low, self.high) else float(f"{value:.4g}")
        return repr(min(max(short, self.low), self.high))

    @property
    def samples(self) -> tuple[str, ...]:
        """The values that stand for all: both ends."""
        return self.text(self.low), self.text(self.high)


Axis: TypeAlias = Choices | Span


def read(texts: Iterable[str]) -> list[Axis]:
    """Reads the axes of a sweep.

    Args:
        texts: `target=values`, one an axis.

    Raises:
        ParamError: for a text of another form, a value or a target that is there twice, or a range
            without numbers in it.
    """
    axes: dict[str, Axis] = {}
    for text in texts:
        axis = _axis(text)
        if axis.target in axes:
            raise ParamError(f"{axis.target} is swept twice: give all its values in one list")
        axes[axis.target] = axis
    return list(axes.values())


def _axis(text: str) -> Axis:
    target, equals, values = reader.partition(text, "=")
    if not equals or not target or not values:
        raise ParamError(
            f"{text!r} sweeps nothing: write path=a,b,c or path=low..high or path=log(low..high)"
        )
    if match := _SPAN.fullmatch(values):
        return _span(target, match)
    listed = reader.split(values)
    if "" in listed:
        raise ParamError(f"{text!r} has an empty value: write '' for an empty string")
    if twice := next((v for v in listed if listed.count(v) > 1), None):
        raise ParamError(f"{text!r} has {twice} twice")
    return Choices(target, tuple(listed))


def _span(target: str, match: re.Match[str]) -> Span:
    _, low, high = match.groups()
    whole = bool(_WHOLE.fullmatch(low) and _WHOLE.fullmatch(high))
    span = Span(target, float(low), float(high), whole, log=match["log"] is not None)
    if not span.low < span.high < math.inf:
        raise ParamError(f"{target}: {low}..{high} has no numbers in it: write low..high")
    if span.log and span.low <= 0:
        raise ParamError(f"{target}: log({low}..{high}) needs ends above 0")
    return span
