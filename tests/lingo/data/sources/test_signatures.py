"""A signature is paired with the first paragraph of its docstring."""

from __future__ import annotations

import pathlib

import pytest

from lingo.config.params import ParamError
from lingo.data.index import Index, open_index
from lingo.data.pairs.pair import PairTokenizer
from lingo.data.sources.signatures import Signatures

PAIRS = PairTokenizer.params().build()

CODE = '''"""This is the text of a module."""
raise RuntimeError("imported")


class Shape(Base):
    """A shape, given
    by its sides.

    More of it.
    """

    @property
    def area(self, unit="m\\x1e") -> float:  # a comment
        """The area that it has.

        >>> Shape().area
        1.0
        """

    def nothing(self):
        pass

    def short(self):
        """Two words."""


def outer(a, *, b=(1, 2)):
    """Adds one to the other."""

    def inner():
        """Adds one to the other."""
'''


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "installed" / "a_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(CODE)
    (folder / "copy.py").write_text(CODE)
    (folder / "broken.py").write_text("def f(:")
    monkeypatch.syspath_prepend(str(folder.parent))
    return "a_package"


def texts(index: Index) -> list[tuple[str, str]]:
    found = [index.read(d, 0, int(n)).decode() for d, n in enumerate(index.size)]
    return [(source, target) for source, target in (text.split("\x1e") for text in found)]


def test_pairs_are_signatures_and_first_paragraphs_each_of_these_once(package: str) -> None:
    source = Signatures.params(packages=[package]).build()
    assert texts(open_index(source, PAIRS)) == [
        ("class Shape(Base)", "A shape, given by its sides."),
        ("def area(self, unit='m\\x1e') -> float", "The area that it has."),
        ("def outer(a, *, b=(1, 2))", "Adds one to the other."),
    ]


def test_splits_share_no_description() -> None:
    def found(split: str) -> set[tuple[str, str]]:
        source = Signatures.params(packages=["rich"], split=split, heldout_fraction=0.3)
        return set(texts(open_index(source.build(), PAIRS)))

    train, heldout = found("train"), found("heldout")
    assert not {target for _, target in train} & {target for _, target in heldout}
    assert train | heldout == found("all")
    assert 0.2 < len(heldout) / len(train | heldout) < 0.4
    assert len(train) > 100


def test_wrong_packages_are_refused_at_build() -> None:
    with pytest.raises(ParamError, match="packages is empty"):
        Signatures.params(packages=[]).build()
