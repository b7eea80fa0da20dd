"""Claims about the syntax of what is typed."""

from __future__ import annotations

import random

from lingo.config.overrides import syntax


def test_calls_are_taken_apart() -> None:
    assert syntax.call("A(b=C(d=1, e=[2, 3]), f='g)=', h.i=j=k)") == (
        "A",
        {"b": "C(d=1, e=[2, 3])", "f": "'g)='", "h.i": "j=k"},
    )
    assert syntax.call(" A ( ) ") == ("A", {})
    assert syntax.call("m.n:A") == ("m.n:A", {})


def test_splitting_keeps_every_character() -> None:
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choice("ab,,()[]'\" ") for _ in range(12))
        try:
            parts = syntax.split(text)
        except syntax.Unreadable:
            continue
        assert [c for c in ",".join(parts) if c != " "] == [c for c in text if c != " "]
