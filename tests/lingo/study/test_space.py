"""The grammar of `--sweep`: lists, ranges, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.study import space
from lingo.study.space import Choices, Span


def axis(text: str) -> space.Axis:
    (found,) = space.read([text])
    return found


@pytest.mark.parametrize(
    ("text", "target", "values"),
    [
        ("a.b=1e-3,3e-3", "a.b", ("1e-3", "3e-3")),
        ("FeedForward.activation= relu , gelu ", "FeedForward.activation", ("relu", "gelu")),
        ("Stack=Stack,Repeat(layer=_, x=[1, 2])", "Stack", ("Stack", "Repeat(layer=_, x=[1, 2])")),
        ("sizes=[1,2],(3,4),{a: 1, b: 2}", "sizes", ("[1,2]", "(3,4)", "{a: 1, b: 2}")),
        ("name='a,b',c", "name", ("'a,b'", "c")),
        ("inputs['a=b'].rate=1", "inputs['a=b'].rate", ("1",)),
        ("source=../a.txt,../b.txt", "source", ("../a.txt", "../b.txt")),
        ("x=1..2,3..4", "x", ("1..2", "3..4")),
        ("x=v1..v2", "x", ("v1..v2",)),
    ],
)
def test_a_list_is_split_at_commas_that_stand_in_no_brackets_and_no_quotes(
    text: str, target: str, values: tuple[str, ...]
) -> None:
    assert axis(text) == Choices(target, values)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("x=1..8", Span("x", 1, 8, whole=True, log=False)),
        ("x=-2..+3", Span("x", -2, 3, whole=True, log=False)),
        ("x=1.0..8", Span("x", 1, 8, whole=False, log=False)),
        ("x=0.1..0.5", Span("x", 0.1, 0.5, whole=False, log=False)),
        ("x=.5 .. 1e1", Span("x", 0.5, 10, whole=False, log=False)),
        ("x=log(1e-4..1e-2)", Span("x", 1e-4, 1e-2, whole=False, log=True)),
        ("x=log( 1..1000 )", Span("x", 1, 1000, whole=True, log=True)),
    ],
)
def test_two_numbers_with_dots_between_are_a_range(text: str, span: Span) -> None:
    assert axis(text) == span


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["x"], "'x' sweeps nothing"),
        (["x="], "sweeps nothing"),
        (["=1,2"], "sweeps nothing"),
        (["x=1,,2"], "empty value"),
        (["x=1,2,"], "empty value"),
        (["x=1,2,1"], "has 1 twice"),
        (["x=[1,2"], r"lacks a closing '\]'"),
        (["x=log(1..2"], "lacks a closing"),
        (["x=2..1"], r"2\.\.1 has no numbers in it"),
        (["x=1..1"], "has no numbers in it"),
        (["x=1..1e999"], "has no numbers in it"),
        (["x=log(0..1)"], r"log\(0\.\.1\) needs ends above 0"),
        (["x=1", "y=2", "x=3"], "x is swept twice"),
    ],
)
def test_what_sweeps_nothing_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(ParamError, match=said):
        space.read(texts)


@pytest.mark.parametrize(
    "text", ["x=a,[1, 2],'b'", "x=1..8", "x=0.1..2.0", "x=log(0.0001..0.01)", "x=log(1..8)"]
)
def test_an_axis_is_written_as_it_is_read(text: str) -> None:
    assert axis(str(axis(text))) == axis(text)


FRACTIONS = np.linspace(0, 1, 1001)[:-1]


def drawn(text: str) -> list[float]:
    return [float(axis(text).draw(fraction)) for fraction in FRACTIONS.tolist()]


def test_a_list_gives_each_value_an_equal_part() -> None:
    assert drawn("x=3,1,2,5") == [3.0] * 250 + [1.0] * 250 + [2.0] * 250 + [5.0] * 250


def test_whole_numbers_are_drawn_alike_often_both_ends_included() -> None:
    values = drawn("x=-2..2")
    assert [values.count(v) for v in (-2, -1, 0, 1, 2)] == [200] * 5


def test_numbers_are_drawn_evenly() -> None:
    np.testing.assert_allclose(drawn("x=-1.0..3"), -1 + 4 * FRACTIONS, atol=1e-3)


def test_the_logarithm_is_drawn_evenly() -> None:
    expected = np.log(1e-4) + FRACTIONS * np.log(1e4)
    np.testing.assert_allclose(np.log(drawn("x=log(1e-4..1)")), expected, atol=1e-3)


def test_whole_numbers_in_the_logarithm_stay_between_the_ends() -> None:
    values = drawn("x=log(1..64)")
    assert (min(values), max(values)) == (1, 64)
    assert np.median(values) == pytest.approx(math.sqrt(65), rel=0.1)
    assert all(v.is_integer() for v in values)


def test_a_drawn_number_has_four_digits_and_is_never_rounded_out_of_the_range() -> None:
    span = axis("x=0.123456..0.123461")
    assert {span.draw(f) for f in FRACTIONS.tolist()} <= {"0.123456", "0.1235", "0.123461"}
    assert axis("x=0.0..1.0").draw(1 / 3) == "0.3333"


def test_the_ends_stand_for_a_range_and_all_values_for_a_list() -> None:
    assert axis("x=1e-4..0.25").samples == ("0.0001", "0.25")
    assert axis("x=1..8").samples == ("1", "8")
    assert axis("x=a,b").samples == ("a", "b")
