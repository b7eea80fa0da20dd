"""Claims about fields that hold a function of the user's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lingo.config import registry, serial, text
from lingo.config.base.types import Function, describe
from lingo.config.params import Configurable, ParamError
from lingo.config.serial import Origin

SOURCE = """
from __future__ import annotations
from lingo.config.params import Configurable
from lingo.config.registry import experiment
from lingo.config.base.types import Function

class Made(Configurable):
    factory: Function  # of what is made
    other: Function | None = None  # of what else is made

def one():
    return 1

def two():
    return 2

@experiment
def made():
    return Made.params(factory=one)
"""


class Holder(Configurable):
    factory: Function  # what it holds


def one() -> int:
    return 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of an experiment and two functions; its name is that of no other test's."""
    path = tmp_path / f"functions_{tmp_path.name}.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("value", [3, "one", Holder, len])
def test_a_field_of_a_function_takes_nothing_else(value: Any) -> None:
    assert Holder.params(factory=one).copy().build().p.factory is one
    assert describe(Function) == "a function"
    with pytest.raises(ParamError, match=r"Holder\.factory takes a function, got"):
        Holder.params(factory=value)


def test_it_is_shown_by_its_file_and_name() -> None:
    assert "factory = test_functions.py:one\n" in text.render(
        text.resolve(Holder.params(factory=one))
    )


@pytest.mark.parametrize("name", ["two", "{file.name}:two"])
def test_an_override_names_a_function_of_the_experiments_file(file: Path, name: str) -> None:
    name = name.format(file=file)
    params = registry.get(f"{file}:made", [f"factory={name}", f"other={name}"]).params
    assert params.factory() == params.other() == 2
    assert registry.get(f"{file}:made", ["other=two", "Made.other=none"]).params.other is None


def test_an_override_names_a_function_of_any_file_by_its_path(file: Path) -> None:
    other = file.with_name(f"more_{file.name}")
    other.write_text("def three():\n    return 3\n")
    assert registry.get(f"{file}:made", [f"factory={other}:three"]).params.factory() == 3


@pytest.mark.parametrize("name", ["tow", "other.py:two", "os:system", "", "two()"])
def test_an_override_that_names_no_function_is_refused(file: Path, name: str) -> None:
    with pytest.raises(ParamError, match=r"factory: There is no function .* in "):
        registry.get(f"{file}:made", [f"factory={name}"])


def test_the_nearest_name_is_suggested(file: Path) -> None:
    with pytest.raises(ParamError, match=rf"no function 'tow' in {file}. Did you mean 'two'"):
        registry.get(f"{file}:made", ["factory=tow"])


def test_it_is_saved_by_name_and_needs_the_trust_of_its_file(file: Path) -> None:
    made = registry.get(f"{file}:made").params
    saved = serial.dump(Holder.params(factory=made.factory), Origin(), "")
    assert json.loads(saved)["params"]["factory"] == {"@": f"{file.name}:one"}
    with pytest.raises(ParamError, match=f"To run it: --trust={file}"):
        serial.load(saved, trust=[__file__])
    loaded = serial.load(saved, trust=[file, __file__])
    assert loaded.params.factory is made.factory
    assert loaded.changed_files == ()
    file.write_text(file.read_text() + "# changed\n")
    assert serial.load(saved, trust=[file, __file__]).changed_files == (str(file),)


@pytest.mark.parametrize(
    "name", ["lingo.config.text:read", "os:system", "{own}:three", "{own}:Holder", "{own}:pytest"]
)
def test_a_configuration_names_no_function_of_lingo_no_other_and_no_class(name: str) -> None:
    own = Path(__file__).name
    saved = serial.dump(Holder.params(factory=one), Origin(), "")
    hostile = saved.replace(f"{own}:one", name.format(own=own))
    with pytest.raises(
        ParamError, match=r"has no class or function|in no trusted place|takes a function"
    ):
        serial.load(hostile, trust=[__file__])


def test_a_function_that_could_not_be_found_again_is_not_saved() -> None:
    for function in (lambda: 1, Holder.check):
        with pytest.raises(ParamError, match="cannot be saved: define the function at the top"):
            serial.dump(Holder.params(factory=function), Origin(), "")
