"""Claims about reading the text of overrides."""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any, Literal

import pytest

from lingo.config import override_reader
from lingo.config.base.errors import Unreadable
from lingo.config.node.tree import same


def no_template(text: str, hint: Any) -> Any:
    raise AssertionError(text)


def read(text: str, hint: Any) -> Any:
    return override_reader.read(text, hint, no_template)


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("3.0", int | float, 3.0),
        ("3", int | str, 3),
        ("'3'", int | str, "3"),
        ("none", str | None, None),
        ("None", Literal["a", None], None),
        ("4", Literal[2, 4], 4),
        ("a, 'b, c', [d]", list[str], ["a", "b, c", "[d]"]),
        ("[[1], [2, 3]]", list[list[int]], [[1], [2, 3]]),
        ("[1],[2]", list[list[int]], [[1], [2]]),
        ("1,2,", tuple[int, ...], (1, 2)),
        ("()", tuple[int, ...], ()),
        ("{a: {b: 1}}", dict[str, dict[str, int]], {"a": {"b": 1}}),
        (" ' a ' ", str, " a "),
        ("'a'|'b'", str, "'a'|'b'"),
        ("'it\\'s'", str, "it's"),
        ("[", str, "["),
        (".5", Any, 0.5),
        ("0x10", Any, "0x10"),
        ("[1, none, 'x', {a: true}]", Any, [1, None, "x", {"a": True}]),
    ],
)
def test_text_is_read_as_its_type_wants(text: str, hint: Any, value: object) -> None:
    assert same(read(text, hint), value)


WRITTEN = [0, -3, 0.1, 1e-300, 1e22, -0.0, True, None, "", "none", "3", "it's", '"', "\\", "[1]"]


@pytest.mark.parametrize("value", [*WRITTEN, "a b", "é\n"])
def test_what_python_writes_is_read_back(value: object) -> None:
    assert same(read(repr(value), Any), value)
    assert same(read(repr([value, [value]]), Any), [value, [value]])
    assert same(read(repr({"k": value}), Any), {"k": value})


@pytest.mark.parametrize(
    ("text", "hint"), [("nan", float), ("NaN", Any), ("-inf", float | None), ("1e400", float)]
)
def test_numbers_are_finite(text: str, hint: Any) -> None:
    with pytest.raises(Unreadable, match="finite"):
        read(text, hint)


@pytest.mark.parametrize("hint", [int, float, bool, Any, list[float], float | None])
def test_long_texts_are_refused_or_read_at_once(hint: Any) -> None:
    start = time.process_time()
    for text in ("1" * 100_000 + "x", "_" * 100_000, "1_" * 50_000, "'" * 99_999, "[" * 60):
        with contextlib.suppress(Unreadable):
            read(text, hint)
    assert time.process_time() - start < 2


def test_calls_are_taken_apart() -> None:
    assert override_reader.parse_call("A(b=C(d=1, e=[2, 3]), f='g)=', h.i=j=k)") == (
        "A",
        {"b": "C(d=1, e=[2, 3])", "f": "'g)='", "h.i": "j=k"},
    )
    assert override_reader.parse_call(" A ( ) ") == ("A", {})
    assert override_reader.parse_call("m.n:A") == ("m.n:A", {})


def test_splitting_keeps_every_character() -> None:
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choice("ab,,()[]'\" ") for _ in range(12))
        try:
            parts = override_reader.split(text)
        except Unreadable:
            continue
        assert [c for c in ",".join(parts) if c != " "] == [c for c in text if c != " "]
