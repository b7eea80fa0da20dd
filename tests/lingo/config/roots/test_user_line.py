"""The line of a user's file that an error comes from."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
from collections.abc import Callable

import pytest

import lingo
from lingo.config.base.errors import note_line, note_place
from lingo.config.params import ParamError
from lingo.config.roots.user_line import (
    definition_line,
    error_prefix,
    is_lingos,
    is_user_file,
    user_line,
)
from lingo.layers import Linear

HERE = pathlib.Path(__file__)


def line_of(text: str) -> str:
    """Returns `file:line` of the first line of this file with a text."""
    lines = HERE.read_text().splitlines()
    return f"{HERE}:{next(n for n, line in enumerate(lines, start=1) if text in line)}"


def error_of(function: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        function()
    return caught.value


def calls_a_package() -> None:
    json.loads("{")  # in the standard library


def calls_lingo() -> None:
    Linear.params(outputs=3)  # in lingo


def raises_again() -> None:
    try:
        json.loads("[")  # first
    except ValueError:
        raise KeyError("again") from None


def test_frames_of_packages_and_of_lingo_are_passed_over() -> None:
    assert user_line(error_of(calls_a_package)) == line_of("# in the standard library")
    assert user_line(error_of(calls_lingo)) == line_of("# in lingo")


def test_the_users_own_raise_counts_not_what_it_answers() -> None:
    assert user_line(error_of(raises_again)) == line_of('raise KeyError("again")')


def test_the_users_line_counts_where_lingo_raises_another_error_for_it() -> None:
    error = ParamError("of lingo")
    error.__context__ = error_of(calls_lingo)
    assert user_line(error) == line_of("# in lingo")


def test_a_graphs_message_has_the_frames() -> None:
    text = f'Detected at node x\n  File "{HERE}", line 7, in f\n  File "{json.__file__}", line 3\n'
    assert user_line(RuntimeError(text)) == f"{HERE}:7"
    assert user_line(RuntimeError(f'  File "{json.__file__}", line 3')) == ""


def test_a_file_that_is_not_there_is_nobodys() -> None:
    assert is_user_file(str(HERE))
    assert not is_user_file("<frozen importlib>")
    assert not is_user_file("/nowhere/mine.py")
    assert not is_user_file(json.__file__)
    assert not is_user_file(__import__("numpy").__file__)


def test_a_class_in_tasks_of_ones_own_is_not_lingos(tmp_path, monkeypatch) -> None:
    (tmp_path / "fit.py").write_text("class Fit: pass")
    spec = importlib.util.spec_from_file_location("tasks.fit", tmp_path / "fit.py")
    monkeypatch.setitem(sys.modules, "tasks.fit", module := importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    assert not is_lingos(module.Fit)
    assert is_lingos(lingo.Experiment)


def test_what_the_text_says_is_not_said_twice() -> None:
    error = ParamError("model: dim=3")
    note_place(error, "model")
    note_line(error, "/a/mine.py:3")
    assert error_prefix(error) == "/a/mine.py:3: "
    assert error_prefix(ParamError("/a/mine.py:3: dim=3")) == ""
    inner = ValueError("odd")
    note_place(inner, "model.layer")
    note_place(inner, "model")
    assert error_prefix(inner) == "model.layer: "


def test_a_definition_has_a_line_unless_it_was_typed() -> None:
    assert definition_line(calls_lingo) == line_of("def calls_lingo")
    assert definition_line(type("Typed", (), {})) == "Typed"
