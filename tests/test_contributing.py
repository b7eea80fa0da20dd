"""CONTRIBUTING.md says where things go: places that exist, few, and all that tests want."""

import re

import pytest

from tools.source_tree import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
MAX_PLACES = 5

_PATH = re.compile(r"`((?:lingo|tasks|params|tests|tools)/[\w./]+)`")
_COUNTS = re.compile(r"__subclasses__\(\)|functions\.__all__")


def rows(title):
    """Returns the rows of the table under a title: first cell -> second cell."""
    section = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE)
    return dict(lines[1:])


PLACES = rows("Add a ...")


@pytest.mark.parametrize("path", sorted(set(_PATH.findall(TEXT))))
def test_every_file_that_is_named_is_there(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("kind", PLACES)
def test_what_is_added_has_few_places(kind):
    assert len(PLACES[kind].split("; ")) <= MAX_PLACES


def test_every_kind_of_thing_has_a_row():
    kinds = "layer model metric loss optimizer input augmentation runtime observer verb experiment"
    assert {*kinds.split(), "export format"} <= {kind.partition(" ")[2] for kind in PLACES}


def test_the_tests_that_count_classes_are_among_the_places():
    """Such a test fails for a class that it does not know, so its file is one to write in."""
    files = [f for f in (ROOT / "tests").rglob("*.py") if f.name != "test_contributing.py"]
    found = {str(f.relative_to(ROOT)) for f in files if _COUNTS.search(f.read_text())}
    wanted = {path for places in PLACES.values() for path in _PATH.findall(places)}
    others = {
        "tests/lingo/runtimes/mesh/test_update_sharding.py",  # it asks optimizers what they take
    }
    assert found - others <= wanted


def test_a_row_of_what_to_change_is_short():
    assert max(len(_PATH.findall(files)) for files in rows("What to change where").values()) <= 3
