"""Claims about what a parameter may hold."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from lingo.config.base import types
from lingo.config.base.types import FilePath, Operational, Wrapped
from lingo.config.node.tree import same
from lingo.config.params import Configurable


class Shape(Configurable, interface=True):
    pass


class Round(Shape):
    pass


class Colour(Configurable, interface=True):
    pass


@pytest.mark.parametrize(
    ("hint", "given", "stored"),
    [
        (float, 3, 3.0),
        (float | int, 3, 3.0),
        (tuple[float, float], [1, 2], (1.0, 2.0)),
        (tuple[int, ...], [], ()),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Literal["a", 1, None], None, None),
        (Any, [1, (2, {"a": None})], [1, (2, {"a": None})]),
        (Operational[int], 3, 3),
        (str | list[str], ["a"], ["a"]),
        (int, -(2**63), -(2**63)),
        (FilePath, "/a/*.txt", "/a/*.txt"),
        (FilePath, "~/a/*.txt", "~/a/*.txt"),
        (FilePath, "gs://a/b", "gs://a/b"),
        (FilePath, "", ""),
    ],
)
def test_a_value_that_loses_nothing_is_converted(hint: Any, given: Any, stored: Any) -> None:
    assert same(types.fitter(hint)(given), stored)


@pytest.mark.parametrize(
    ("hint", "given"),
    [
        (int, True),
        (int, 8.0),
        (int, np.int64(8)),
        (int, 2**63),
        (int, -(2**63) - 1),
        (float, 10**400),
        (bool, 1),
        (float, float("nan")),
        (float, np.float32(1)),
        (str, b"a"),
        (Literal[1, 2], True),
        (list[int], "12"),
        (list[int], [1, "2"]),
        (tuple[int, int], (1,)),
        (dict[str, int], {1: 2}),
        (Any, float("nan")),
        (Any, object()),
        (Shape, Colour),
        (Wrapped, 3),
    ],
)
def test_a_value_of_another_type_is_refused(hint: Any, given: Any) -> None:
    with pytest.raises(TypeError):
        types.fitter(hint)(given)


def test_a_class_means_its_params_and_any_with_the_interface_fits() -> None:
    assert types.fitter(Round)(Shape).cls is Shape
    assert types.fitter(Wrapped)(Colour).cls is Colour
    assert types.fitter(list[Shape])([Round])[0].cls is Round
    assert types.fitter(Any)(Round).cls is Round


def test_containers_are_copied() -> None:
    given = [[1]]
    stored = types.fitter(list[list[int]])(given)
    given[0].append(2)
    assert stored == [[1]]


@pytest.mark.parametrize("hint", [bytes, object, np.ndarray, set[int], list[bytes], type])
def test_what_is_no_parameter_type_is_refused(hint: Any) -> None:
    with pytest.raises(TypeError, match="is not a parameter type"):
        types.fitter(hint)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int | None, "int or None"),
        (FilePath | None, "str or None"),
        (Literal["a", "b"], "one of 'a', 'b'"),
        (list[int], "list of int"),
        (tuple[int, ...], "tuple of int"),
        (tuple[int, str], "tuple of int, str"),
        (dict[str, float], "dict of float"),
        (Any, "any parameter value"),
        (Wrapped, "the parameters of what it wraps"),
        (Shape, "a Shape"),
        (Round, "a Shape such as Round"),
        (Operational[Round], "a Shape such as Round"),
    ],
)
def test_a_type_has_words(hint: Any, words: str) -> None:
    assert types.describe(hint) == words


def test_marks_are_seen() -> None:
    assert types.is_operational(Operational[int])
    assert not types.is_operational(int)
    assert types.is_wrapped(Wrapped)
    assert types.is_file_path(Operational[FilePath | None])
    assert not types.is_file_path(str)
    assert types.takes(Wrapped, Colour)
    assert types.takes(Round | None, Shape)
    assert not types.takes(Round | None, Colour)


def test_the_type_of_an_item() -> None:
    assert types.item(Shape | list[Shape], 0) is Shape
    assert types.item(tuple[int, str], 1) is str
    assert types.item(tuple[int, ...], 7) is int
    assert types.item(dict[str, int], "a") is int
    assert types.item(Any, 0) is Any


def test_a_relative_path_means_the_same_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert types.fitter(FilePath | None)("a/*.txt") == f"{tmp_path}/a/*.txt"
    assert types.fitter(FilePath)("../b") == str(tmp_path.parent / "b")
    tmp_path.rmdir()
    with pytest.raises(TypeError, match="the working directory is gone"):
        types.fitter(FilePath)("a")
