"""Claims about documentation read from source."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from lingo.config import docs
from lingo.config.params import Configurable, fields


class Plain(Configurable, interface=True):
    """What it is."""

    # ---- sizes
    width: int  # in metres
    # how far it goes,
    # in steps
    reach: int | None = None  # None: no limit
    colour: Literal[
        "red",  # warm
        "blue",  # cold
    ] = "red"
    bare: list[int] = [1, 2]

    not_a_field = 3


class Special(Plain):
    extra: Plain = Plain.params(width=3)  # another, with a "# hash" in "# it"
    reach: int  # narrower


def test_fields_come_with_type_default_comment_and_owner() -> None:
    assert [f[:5] for f in docs.describe(Plain)] == [
        ("width", "int", "required", "in metres", "Plain"),
        ("reach", "int | None", "None", "how far it goes, in steps None: no limit", "Plain"),
        ("colour", "Literal['red', 'blue']", "'red'", "warm cold", "Plain"),
        ("bare", "list[int]", "[1, 2]", "", "Plain"),
    ]


def test_inherited_fields_are_documented_where_they_are_declared() -> None:
    found = {f.name: f for f in docs.describe(Special)}
    assert found["width"].owner == "Plain"
    assert found["extra"].comment == 'another, with a "# hash" in "# it"'
    assert found["extra"].default == "Plain.params(width=3)"
    assert found["reach"][1:3] == ("int", "None")
    assert found["reach"].owner == "Special"


def test_the_line_of_a_declaration_is_right() -> None:
    for field in docs.describe(Special):
        assert field.file == __file__
        line = Path(field.file).read_text().splitlines()[field.line - 1]
        assert line.strip().startswith(f"{field.name}:")


def test_a_class_without_source_still_has_types_and_defaults() -> None:
    body = {"__annotations__": {"more": "float"}, "more": 0.5, "__module__": __name__}
    made = type("Made", (Plain,), body)
    last = docs.describe(made)[-1]
    assert last == docs.FieldDoc("more", "float", "0.5", "", "Made", "", 0)


def test_every_field_of_lingo_has_a_comment() -> None:
    from lingo.layers.dropout import Dropout

    assert all(field.comment for field in docs.describe(Dropout))
    assert docs.declaration(fields(Dropout)["dtype"]).owner == "Layer"
