"""Claims about where values came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lingo.config import serial
from lingo.config.overrides import apply
from lingo.config.params import ParamError
from lingo.config.why import why

CONFTEST = "tests/lingo/config/conftest.py"


def chain(params: Any, path: str) -> list[str]:
    (found,) = why(params, path)
    return [f"{step.value}  {step.origin}" for step in found.steps]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])


def line(text: str, file: str) -> int:
    lines = [at.strip() for at in Path(file).read_text().splitlines()]
    return next(number for number, at in enumerate(lines, 1) if at.startswith(text))


def test_a_chain_ends_with_the_last_override(toys: Any) -> None:
    toy = toys.Toy.params()
    toy.max_steps = 7  # set here
    apply(toy, ["max_steps=8", "Toy.max_steps=9"])
    here = "tests/lingo/config/test_why.py"
    assert chain(toy, "max_steps") == [
        f"100  default of conftest.py:Toy, {CONFTEST}:{line('max_steps:', CONFTEST)}",
        f"7  {here}:{line('toy.max_steps = 7', here)} in test_a_chain_ends_with_the_last_override",
        "8  --set max_steps=8",
        "9  --set Toy.max_steps=9",
    ]


def test_a_parent_is_named_where_nobody_set_the_field(toys: Any) -> None:
    toy = toys.Toy.params()
    assert chain(toy, "model.layer.attention.dim") == ["8  inherited from Block"]
    apply(toy, ["Attention.dim=3"])
    assert chain(toy, "model.layer.attention.dim") == ["3  --set Attention.dim=3"]
    assert chain(toys.Funnel.params(dim=8), "layer.dim") == ["4 | 8  inherited from Funnel"]


def test_a_setting_of_a_default_template_names_the_class_that_has_it(toys: Any) -> None:
    first, second = chain(toys.Toy.params(), "model.layer.feed_forward.activation")
    assert first.startswith("'relu'  default of conftest.py:FeedForward")
    assert second.startswith(f"'gelu'  {CONFTEST}:") and second.endswith(" in Block")  # noqa: PT018


def test_swaps_and_wraps_are_part_of_the_chain(toys: Any) -> None:
    toy = toys.Toy.params()
    toy.model.layer.feed_forward = toys.FeedForward
    apply(toy, ["FeedForward=Gated", "Gated=Remat(layer=_)"])
    found = chain(toy, "model.layer.feed_forward")
    classes = [step.split()[0].partition(":")[2] for step in found]
    assert classes == ["FeedForward", "FeedForward", "Gated", "Remat"]
    assert found[-1] == "conftest.py:Remat  --set Gated=Remat(layer=_)"
    assert chain(toy, "model.layer.feed_forward.layer")[-1].endswith("--set Gated=Remat(layer=_)")


def test_a_class_pattern_gives_a_chain_for_each(toys: Any) -> None:
    toy = toys.Toy.params(model=toys.Stack.params(dim=8, layer=[toys.Norm, toys.Norm]))
    paths = [c.path for c in why(toy, "Norm.epsilon")]
    assert paths == ["model.layer[0].epsilon", "model.layer[1].epsilon"]


def test_items_have_the_history_of_their_field(toys: Any) -> None:
    toy = toys.Toy.params()
    apply(toy, ["eval_inputs['heldout'].pattern=x"])
    last = chain(toy, "eval_inputs['heldout'].pattern")[-1]
    assert last == "'x'  --set eval_inputs['heldout'].pattern=x"


def test_a_saved_value_names_its_file(toys: Any) -> None:
    written = serial.dump(toys.Toy.params(name="x"), serial.Origin(), "")
    again = serial.load(written, trust=[CONFTEST], source="run/config.json")
    assert chain(again.params, "name")[-1] == "'x'  run/config.json"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("max_stpes", "Did you mean 'max_steps'"),
        ("Blok.dim", "Did you mean 'Block'"),
        ("Block", "write Block.field"),
        ("", "not a path"),
    ],
)
def test_what_is_not_there_is_an_error(toys: Any, target: str, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        why(toys.Toy.params(), target)
