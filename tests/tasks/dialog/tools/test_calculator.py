"""The calculator: what it can parse it computes right, and it computes nothing else."""

from __future__ import annotations

import math
import operator
import random
import warnings
from fractions import Fraction

import pytest

from tasks.dialog.tools.calculator import MAX_CHARS, Calculator

CALCULATOR = Calculator.params().build()


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("135+7721", "7856"),
        (" 135 + 7721 = ", "7856"),
        ("6*7?", "42"),
        ("0.1+0.2", "0.3"),
        ("1/3", "0.333333333333333"),
        ("1/3*3", "1"),
        ("2/3", "0.666666666666667"),
        ("-(2+3)", "-5"),
        ("-2**2", "-4"),
        ("2**3**2", "512"),
        ("2^10", "1024"),
        ("2**-1", "0.5"),
        ("-7//2", "-4"),
        ("7//-2", "-4"),
        ("7//2.5", "2"),
        ("-7 % 3", "2"),
        ("7.5 % 2", "1.5"),
        ("15% of 80", "12"),
        ("80*5%", "4"),
        ("100/5%", "2000"),
        ("15%", "0.15"),
        ("7 % (3)", "1"),
        ("sqrt(16)", "4"),
        ("sqrt(2)**2", "2"),
        ("sqrt(2)", "1.4142135623731"),
        ("2**100", "1267650600228229401496703205376"),
        ("1e5+1", "100001"),
        ("1e308*10", "1E+309"),
        ("1e-9*1", "1E-9"),
        ("0*-1", "0"),
        ("6\N{MULTIPLICATION SIGN}7\N{MINUS SIGN}2", "40"),
        ("10\N{DIVISION SIGN}4", "2.5"),
        ("\u0663+\u0664", "7"),  # Arabic-Indic
        ("\u0967\u0968*\u0968", "24"),  # Devanagari
        ("\uff11+\uff12", "3"),  # of full width
    ],
)
def test_an_expression_has_its_value(query: str, answer: str) -> None:
    assert CALCULATOR(query) == [answer]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "How old is Rafael Nadal?",
        "hello in French",
        "42",
        "-5",
        "(1)",
        "1/0",
        "1//0",
        "5 % 0",
        "0**0",
        "sqrt(-1)",
        "(-8)**(1/3)",
        "7%-2",  # a percentage and a number, or a remainder
        "50%+1",
        "3 of 4",
        "1,000*3",  # a thousand, or one?
        "1 2+3",
        "007+1",
        "2(3)",
        "1+",
        "1+1#comment",
        "1<2",
        "1 if 2 else 3",
        "1if 2else 3",
        "[1]+[2]",
        "'a'*10",
        "True+1",
        "1j*1j",
        "nan+1",
        "0x10+1",
        "1_000+1",
        "1:=2",
        "a+1",
        "sqrt(4, 9)",
        "sqrt(*4)",
        "exp(1)",
        "1;2",
        "\u00bd+1",
        "\u00b2+1",
    ],
)
def test_what_is_no_arithmetic_or_has_no_value_has_no_answer(query: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of Python's parser
        assert CALCULATOR(query) == []


OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


def draw_expression(draw: random.Random, depth: int) -> tuple[str, Fraction | None]:
    """Returns an expression and its value; None: it divides by zero."""
    if depth == 0:
        number = draw.randint(0, 2000)
        return f"{number / 100}", Fraction(number, 100)
    (left, a), (right, b) = (draw_expression(draw, draw.randint(0, depth - 1)) for _ in range(2))
    sign = draw.choice(list(OPERATORS))
    text = f"(-({left}){sign}{right})"
    if a is None or b is None or (b == 0 and sign in ("/", "//", "%")):
        return text, None
    return text, OPERATORS[sign](-a, b)


def test_random_expressions_have_the_value_of_exact_fractions() -> None:
    draw = random.Random(0)
    drawn = [draw_expression(draw, depth=4) for _ in range(500)]
    assert sum(value is not None for _, value in drawn) > 400
    for text, value in drawn:
        answer = CALCULATOR(text)
        if value is None:
            assert answer == [], text
        else:
            assert math.isclose(float(answer[0]), value, rel_tol=1e-14), (text, value)


def test_an_expression_that_is_too_long_has_no_answer() -> None:
    longest = "1" + "+1" * ((MAX_CHARS - 1) // 2)
    assert CALCULATOR(longest) == [str((MAX_CHARS - 1) // 2 + 1)]
    assert CALCULATOR(longest + "+1") == []
