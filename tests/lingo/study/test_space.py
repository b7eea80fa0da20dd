"""The grammar of `--sweep`: lists, ranges, and what is refused."""

import math

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.study.space import Axis, read_axes


def axis(text):
    (axis,) = read_axes([text])
    return axis


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
def test_a_list_is_split_at_commas_outside_of_brackets_and_quotes(text, target, values):
    assert axis(text) == Axis(target, values, "list")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=1..8", Axis("x", ("1", "8"), "linear")),
        ("x=-2..+3", Axis("x", ("-2", "3"), "linear")),
        ("x=1.0..8", Axis("x", ("1.0", "8.0"), "linear")),
        ("x=0.1..0.5", Axis("x", ("0.1", "0.5"), "linear")),
        ("x=.5 .. 1e1", Axis("x", ("0.5", "10.0"), "linear")),
        ("x=log(1e-4..1e-2)", Axis("x", ("0.0001", "0.01"), "log")),
        ("x=log( 1..1000 )", Axis("x", ("1", "1000"), "log")),
    ],
)
def test_two_numbers_with_dots_between_are_a_range(text, expected):
    assert axis(text) == expected


@pytest.mark.parametrize(
    ("texts", "message"),
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
def test_a_text_that_sweeps_nothing_is_refused(texts, message):
    with pytest.raises(ParamError, match=message):
        read_axes(texts)


@pytest.mark.parametrize(
    "text", ["x=a,[1, 2],'b'", "x=1..8", "x=0.1..2.0", "x=log(0.0001..0.01)", "x=log(1..8)"]
)
def test_an_axis_is_written_as_it_is_read(text):
    assert axis(str(axis(text))) == axis(text)


FRACTIONS = np.linspace(0, 1, 1001)[:-1]


def draw_all(text):
    return [float(axis(text).draw(fraction)) for fraction in FRACTIONS.tolist()]


def test_a_list_gives_each_value_an_equal_part():
    assert draw_all("x=3,1,2,5") == [3.0] * 250 + [1.0] * 250 + [2.0] * 250 + [5.0] * 250


def test_integers_are_drawn_equally_often_both_ends_included():
    values = draw_all("x=-2..2")
    assert [values.count(v) for v in (-2, -1, 0, 1, 2)] == [200] * 5


def test_numbers_and_logarithms_are_drawn_evenly():
    np.testing.assert_allclose(draw_all("x=-1.0..3"), -1 + 4 * FRACTIONS, atol=1e-3)
    expected = np.log(1e-4) + FRACTIONS * np.log(1e4)
    np.testing.assert_allclose(np.log(draw_all("x=log(1e-4..1)")), expected, atol=1e-3)


def test_integers_in_the_logarithm_stay_between_the_ends():
    values = draw_all("x=log(1..64)")
    assert (min(values), max(values)) == (1, 64)
    assert np.median(values) == pytest.approx(math.sqrt(65), rel=0.1)
    assert all(v.is_integer() for v in values)


def test_a_drawn_number_has_four_digits_and_is_never_rounded_out_of_the_range():
    narrow = axis("x=0.123456..0.123461")
    assert {narrow.draw(f) for f in FRACTIONS.tolist()} <= {"0.123456", "0.1235", "0.123461"}
    assert axis("x=0.0..1.0").draw(1 / 3) == "0.3333"


def test_the_values_of_a_range_are_its_ends_as_they_are_tried():
    assert axis("x=1e-4..0.25").values == ("0.0001", "0.25")
    assert axis("x=1..8").values == ("1", "8")
