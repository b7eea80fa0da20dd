"""A signature is paired with the first paragraph of its docstring."""

import pytest

from lingo.data.index import open_index
from lingo.data.pairs.pair import PairTokenizer
from lingo.datasets.signatures import FirstParagraphs, Signatures
from tests.lingo.data import documents

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


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "installed" / "a_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(CODE)
    (folder / "copy.py").write_text(CODE)
    (folder / "broken.py").write_text("def f(:")
    monkeypatch.syspath_prepend(str(folder.parent))
    return "a_package"


def pairs(*packages, **fields):
    index = open_index(Signatures.params(packages=list(packages), **fields).build(), PAIRS)
    return [tuple(text.split("\x1e")) for text in documents.texts(index)]


def test_pairs_are_signatures_and_first_paragraphs_each_of_these_once(package):
    assert pairs(package) == [
        ("class Shape(Base)", "A shape, given by its sides."),
        ("def area(self, unit='m\\x1e') -> float", "The area that it has."),
        ("def outer(a, *, b=(1, 2))", "Adds one to the other."),
    ]


def test_splits_share_no_description():
    train, heldout, everything = (
        set(pairs("rich", split=split, heldout_fraction=0.3))
        for split in ("train", "heldout", "all")
    )
    assert not {target for _, target in train} & {target for _, target in heldout}
    assert train | heldout == everything
    assert 0.2 < len(heldout) / len(train | heldout) < 0.4
    assert len(train) > 100


def test_a_summary_is_the_first_paragraph_of_the_rest_without_its_examples(tmp_path, monkeypatch):
    folder = tmp_path / "documented"
    folder.mkdir()
    (folder / "__init__.py").write_text('''
def clip(x):
    """Limits the values
    of an array.

    Values below the lowest become the lowest one.

    >>> clip(3)
    2

    Others stay as they are.
    """


def short(x):
    """Returns what was given.

    Too little follows.
    """
''')
    monkeypatch.syspath_prepend(str(tmp_path))
    source = FirstParagraphs.params(packages=["documented"], min_words=5)
    (pair,) = documents.texts(open_index(source.build(), PAIRS))
    rest, first = pair.split("\x1e")
    assert first == "Limits the values of an array."
    assert rest == ("Values below the lowest become the lowest one.\n\nOthers stay as they are.")
    (pair,) = documents.texts(open_index(source.set(max_bytes=6).build(), PAIRS))
    assert pair.split("\x1e") == ["Values", first]
