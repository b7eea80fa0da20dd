"""Checks that numbers in fields lie in a range; None is always allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from lingo.config.params import ParamError, fields

LARGEST = (2.0 - 2.0**-23) * 2.0**127  # the largest finite float32


def check_finite(p: Any) -> None:
    """Raises ParamError if a field holds a number that float32, used in training, cannot hold."""
    for name in fields(p.cls):
        for number in _numbers(getattr(p, name)):
            if abs(number) > LARGEST:
                raise ParamError(f"{name}={number:.6g} is not finite in float32")


def check_not_negative(p: Any, *names: str) -> None:
    """Raises ParamError if one of the named fields holds a number below 0."""
    _check(p, names, lambda value: value >= 0, "is negative")


def check_positive(p: Any, *names: str) -> None:
    """Raises ParamError if one of the named fields holds a number that is 0 or less."""
    _check(p, names, lambda value: value > 0, "is not positive")


def check_fraction(p: Any, *names: str) -> None:
    """Raises ParamError if one of the named fields holds a number outside [0, 1)."""
    _check(p, names, lambda value: 0 <= value < 1, "is not in [0, 1)")


def check_at_most(p: Any, limit: int, *names: str) -> None:
    """Raises ParamError if one of the named fields holds a number above `limit`."""
    _check(p, names, lambda value: value <= limit, f"is more than {limit}")


def _check(p: Any, names: tuple[str, ...], allowed: Callable[[Any], bool], wrong: str) -> None:
    for name in names:
        if not all(allowed(number) for number in _numbers(getattr(p, name))):
            hint = "; None is its default" if fields(p.cls)[name].default is None else ""
            raise ParamError(f"{name}={getattr(p, name)} {wrong}{hint}")


def _numbers(value: Any) -> Iterator[float]:
    """Yields the numbers in a field's value, but not in Params, which check their own numbers."""
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in cast("list[Any]", value):
            yield from _numbers(item)
