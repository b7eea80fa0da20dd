"""A calculator that runs no code: `ast` parses the expression, and a table of operators computes.

Numbers are of the module `decimal`, so that `0.1+0.2` is exact. Its context bounds digits and
exponents, so that `9**9**9` overflows at once.
"""

from __future__ import annotations

import ast
import decimal
import operator
import re
import unicodedata
from decimal import Decimal

from lingo.config.base.ast_lock import AST_LOCK
from tasks.dialog.tools.tool import Tool

MAX_CHARS = 256  # of an expression; this also bounds its depth and its operations

_DIGITS = 100  # of a number
_SHOWN_DIGITS = 15  # of a result that is rounded or not an integer
_NUMBER = r"(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d+)?"
_TOKEN = re.compile(rf"{_NUMBER}|\*\*|//|\w+|\S", re.ASCII)
_PERCENTAGE = re.compile(rf"({_NUMBER})\s*%\s*(?:(of)\b|(?=[*/)])|$)", re.ASCII)
_REFUSED = re.compile(r"[^\x01-\x7f]|#|%\s*[-+]")
_SYNONYMS = str.maketrans(
    {"\N{MULTIPLICATION SIGN}": "*", "\N{DIVISION SIGN}": "/", "\N{MINUS SIGN}": "-", "^": "**"}
)
_CONTEXT = decimal.Context(
    prec=_DIGITS,
    Emax=1000,
    Emin=-1000,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow, decimal.Underflow],
)


class Calculator(Tool):
    """Answers `135+7721` with `7856`.

    An expression has decimal numbers, in the digits of any script, parentheses, `sqrt` and Python's
    operators + - * / // % **; ^ and the mathematical signs are synonyms. A `%` without a number
    after it is a percentage: `15% of 80`, `80*5%`. The answer is [] for everything else: for a
    number alone, for `1/0`, for `7%-2`, which has two meanings, and for numbers outside
    1e-1000..1e1000.

    Integers of up to 100 digits are exact; other results are rounded to 15 digits.
    """

    def __call__(self, query: str) -> list[str]:
        if len(query) > MAX_CHARS:
            return []
        try:
            with decimal.localcontext(_CONTEXT) as context:
                value = _evaluate(_expression(query))
                is_exact = not context.flags[decimal.Inexact]
                return [_describe(value, is_exact=is_exact)]
        except (SyntaxError, ArithmeticError, RecursionError, MemoryError):
            return []


def _expression(query: str) -> str:
    """Returns a query as a Python expression, with spaces between its tokens."""
    text = "".join(str(unicodedata.decimal(character, character)) for character in query)
    text = text.translate(_SYNONYMS).strip().rstrip("=?")
    text = _PERCENTAGE.sub(lambda match: f"({match[1]}/100)" + "*" * bool(match[2]), text)
    if _REFUSED.search(text):
        raise SyntaxError("no arithmetic, or a percentage that may be a remainder")
    return " ".join(_TOKEN.findall(text))


def _evaluate(text: str) -> Decimal:
    """Returns the value of an expression with at least one operation.

    Raises SyntaxError for a text that is no such expression, ArithmeticError for an expression
    without a value, and RecursionError or MemoryError like `ast.parse`.
    """
    with AST_LOCK:
        tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.BinOp | ast.UnaryOp | ast.Call):
        raise SyntaxError("no operation")
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.operand, ast.Constant):
        raise SyntaxError("a number alone")
    return _value(tree, text)


def _value(node: ast.expr, text: str) -> Decimal:
    match node:
        case ast.Constant(value=int() | float()):  # its text, since a float would round it
            return +Decimal(text[node.col_offset : node.end_col_offset])
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _value(operand, text)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, text), _value(right, text))
        case ast.Call(func=ast.Name(id="sqrt"), args=[argument], keywords=[]):
            return _value(argument, text).sqrt()
        case _:
            raise SyntaxError(f"no arithmetic: {ast.dump(node)[:20]}")


def _floor_divide(a: Decimal, b: Decimal) -> Decimal:
    """Returns floor(a / b), as Python's integers do; `decimal` rounds to 0."""
    return (a - _modulo(a, b)) / b


def _modulo(a: Decimal, b: Decimal) -> Decimal:
    """Returns a - b * floor(a / b), with the sign of b; in `decimal` it has the sign of a."""
    remainder = a % b
    return remainder + b if remainder and (remainder < 0) != (b < 0) else remainder


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: _floor_divide,
    ast.Mod: _modulo,
    ast.Pow: operator.pow,
}


def _describe(value: Decimal, *, is_exact: bool) -> str:
    """Returns the digits of a value: all of an exact integer, else the first 15."""
    if is_exact and value == value.to_integral_value() and value.adjusted() < _DIGITS:
        return f"{value + 0:.0f}"  # + 0: not -0
    rounded = decimal.Context(prec=_SHOWN_DIGITS).plus(value).normalize()
    return f"{rounded:f}" if -7 < rounded.adjusted() <= _SHOWN_DIGITS else str(rounded)
