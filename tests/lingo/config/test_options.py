"""A declaration of options, and the functions that are made of it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Literal

import pytest

from lingo.config.base.hints import hint
from lingo.config.options import (
    declarations,
    documents,
    method_takes,
    option,
    option_class,
    takes,
    word,
    word_field,
)


@option_class
class Brew:
    """How to brew."""

    minutes: int = option("How long.", default=4, minimum=1)
    leaf: Literal["green", "black"] | None = option("Which tea.", default=None)
    add: Sequence[str] = option(
        "What to add, " + "and more " * 20 + "of it.", default=(), flag="with"
    )


@option_class
class Flags(Brew):
    """What only a verb has."""

    cup: str = word("CUP")
    quiet: bool = option("Say nothing.", default=False)


@dataclasses.dataclass(frozen=True)
class Call(Brew):
    """What only the function has."""

    cup: str


@takes(Call)
def brew(call: Call) -> tuple[str, int]:
    """Brews tea.

    Args:
        cup: where to.

    Returns:
        The cup and the minutes.
    """
    return call.cup, call.minutes


class Kitchen:
    @method_takes(Call)
    def brew(self, call: Call) -> tuple[Kitchen, str]:
        """Brews tea."""
        return self, call.cup


def test_a_hint_names_an_option_as_the_caller_gives_it() -> None:
    @dataclasses.dataclass(frozen=True)
    class Tell(Brew):
        cup: str

    @takes(Tell)
    def say(call: Tell) -> list[str]:
        """Says how.

        Args:
            cup: where to.
        """
        return [hint("with", ["a b", "c"]), hint("minutes"), hint("quiet")]

    assert say("blue") == ["add=['a b', 'c']", "minutes=True", "--quiet"]
    assert [hint("with", ["a b", "c"]), hint("quiet")] == ["--with='a b' --with=c", "--quiet"]


def test_a_declaration_is_read_with_its_types_and_words() -> None:
    minutes, leaf, add, quiet = declarations(Flags)
    assert [one.field for one in (minutes, leaf, add, quiet)] == ["minutes", "leaf", "add", "quiet"]
    assert (minutes.flag, add.flag, minutes.option.minimum) == ("minutes", "with", 1)
    assert (minutes.types, quiet.types) == ((int,), (bool,))
    assert (leaf.choices, minutes.choices) == (["green", "black"], [])
    assert (word_field(Flags), word_field(Brew)) == (("cup", "CUP"), ("", ""))


def test_a_function_takes_the_fields_of_its_call() -> None:
    assert brew("blue", minutes=3) == ("blue", 3)
    assert brew(cup="red") == ("red", 4)
    kitchen = Kitchen()
    assert kitchen.brew("blue", add=["milk"]) == (kitchen, "blue")


def test_its_signature_and_help_are_those_of_the_declaration() -> None:
    parameters = inspect.signature(brew).parameters
    assert [*parameters] == ["cup", "minutes", "leaf", "add"]
    assert parameters["minutes"].default == 4
    assert [*inspect.signature(Kitchen.brew).parameters][:2] == ["self", "cup"]
    doc = inspect.getdoc(brew) or ""
    assert doc.startswith("Brews tea.\n\nArgs:\n    cup: where to.\n    minutes: How long.\n")
    assert doc.endswith("of it.\n\nReturns:\n    The cup and the minutes.")
    assert max(map(len, doc.splitlines())) <= 96


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: brew(), r"brew\(\) missing 1 required positional argument: 'cup'"),
        (lambda: brew("a", 3), r"brew\(\) takes 2 positional arguments but 3 were given"),
        (lambda: Kitchen().brew("a", sugar=1), r"brew\(\) got an unexpected keyword argument"),
    ],
)
def test_a_wrong_call_is_refused_by_the_name_of_the_function(call, message) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_a_function_that_repeats_its_options_gets_their_sentences() -> None:
    @documents(Brew)
    def many(*cups: str, minutes: int = 4) -> None:
        """Brews.

        Args:
            *cups: where to.
        """

    assert "    *cups: where to.\n    minutes: How long.\n" in (many.__doc__ or "")
