"""Snippets: some of each file, of each label at most so many, and none in two splits."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from lingo.config.params import ParamError
from lingo.data.index import open_index
from lingo.data.pairs.pair import PairTokenizer
from tasks.classification.snippets import (
    Brackets,
    DocstringMatch,
    Exceptions,
    Libraries,
    Snippets,
    TokenKinds,
)
from tests.lingo.data.documents import texts

PAIRS = PairTokenizer.params().build()
KINDS = [TokenKinds, Brackets, Exceptions, DocstringMatch, Libraries]
Install = Callable[[str, dict[str, str]], str]


@pytest.fixture
def install(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Writes the files of a package that can be found."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def install(name: str, files: dict[str, str]) -> str:
        (folder / name).mkdir()
        for file, code in files.items():
            (folder / name / file).write_text(code)
        return name

    return install


def pairs(kind: type[Snippets], *packages: str, **fields: Any) -> list[tuple[str, ...]]:
    index = open_index(kind.params(packages=list(packages), **fields).build(), PAIRS)
    return [tuple(text.split("\x1e")) for text in texts(index)]


@pytest.mark.parametrize("kind", KINDS)
def test_snippets_of_real_code_name_their_task_and_no_text_is_in_two_splits(kind):
    packages = ["rich", "absl"]
    train, heldout = (pairs(kind, *packages, split=split) for split in ("train", "heldout"))
    labels = kind.params(packages=packages).build().labels
    assert {label for _, label in train} <= set(labels)
    assert len({label for _, label in train}) > 1
    assert all(source.startswith(f"{kind.task}: ") for source, _ in train)
    sources = [source for source, _ in train + heldout]
    assert len(set(sources)) == len(sources)
    assert sorted(train + heldout) == sorted(pairs(kind, *packages))
    assert 0 < len(heldout) < len(train)


def test_a_file_gives_at_most_so_many_of_each_label(install: Install) -> None:
    lines = [f"x{i} = f((a{i}), [b])" for i in range(100)]
    package = install("one_file", {"a.py": "\n".join(lines)})
    for most in (1, 5):
        found = pairs(Brackets, package, per_label=most)
        labels = collections.Counter(label for _, label in found)
        assert labels == {"match": most, "differ": most}


def test_files_that_are_no_python_and_what_no_pair_can_hold_are_left_out(install: Install) -> None:
    files = {"a.py": "x = (", "b.py": "x = f((1), [2])\ny = f((1), ['\x1e'])\nz = (((1)))\n"}
    found = [text for text, _ in pairs(Brackets, install("odd", files))]
    assert len(found) == 2
    assert not any("y =" in text for text in found)


def test_wrong_fields_are_refused() -> None:
    with pytest.raises(ParamError, match="per_label=0 is not positive"):
        Brackets.params(per_label=0).build()
    with pytest.raises(ParamError, match=r"packages=\['rich'\]: there is nothing to tell apart"):
        Libraries.params(packages=["rich"]).build()
