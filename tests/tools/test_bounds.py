"""A benchmark ends with what it missed, and with a code that says so."""

from __future__ import annotations

import math

import pytest

from tools.bounds import Bound, Bounds, at_least, at_most


@pytest.mark.parametrize(
    ("bound", "inside", "outside", "shown"),
    [
        (at_most(1.02), [0.5, 1.02], [1.03, math.nan], "<= 1.02"),
        (at_least(5), [5.0, 9.0], [4.9, math.nan], ">= 5"),
        (Bound(0.8, 1.2), [0.8, 1.0, 1.2], [0.7, 1.3, math.nan], "0.8 to 1.2"),
    ],
)
def test_a_bound_holds_what_is_inside(
    bound: Bound, inside: list[float], outside: list[float], shown: str
) -> None:
    assert [bound.holds(value) for value in inside + outside] == [True] * len(inside) + [
        False
    ] * len(outside)
    assert str(bound) == shown


def test_what_is_missed_is_named_and_is_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    bounds = Bounds()
    bounds.hold("step / by hand", 1.05, at_most(1.02))
    bounds.hold("caches", 6.0, at_least(5))
    bounds.hold("nobody's", 100.0, None)
    assert bounds.exit_code() == 1
    assert capsys.readouterr().out == "missed: step / by hand is 1.05, wanted <= 1.02\n"


def test_nothing_missed_is_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    bounds = Bounds()
    bounds.hold("caches", 6.0, at_least(5))
    assert bounds.exit_code() == 0
    assert capsys.readouterr().out == ""
