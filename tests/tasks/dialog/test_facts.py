"""Facts are those of CLDR and of docstrings; subjects are held out by their names."""

from __future__ import annotations

import importlib.util

import pytest

from lingo.config.base.errors import MissingPackage
from lingo.datasets.signatures import Signatures
from tasks.dialog import facts
from tasks.dialog.facts import KINDS, Fact, arithmetic_facts, cldr_facts, documented_facts
from tasks.dialog.tools.calculator import Calculator


@pytest.mark.parametrize(
    "line",
    [
        "Japan / currency / Japanese Yen",
        "Japanese Yen / ISO 4217 code / JPY",
        "Brazil / official language / Portuguese",
        "German / name in the language itself / Deutsch",
        "Monday / word in French / lundi",
        "hours / word in German / Stunden",
        "million / word in Spanish / millón",
        "Germany / word in Italian / Germania",
    ],
)
def test_what_everybody_knows_is_among_the_facts(line: str) -> None:
    assert line in {fact.line for fact in cldr_facts()}


def test_a_question_has_one_answer_and_no_subject_answers_itself() -> None:
    known = cldr_facts()
    assert len(known) > 5000
    assert len({(f.kind, f.subject, f.language) for f in known}) == len(known)
    assert not [fact for fact in known if fact.subject == fact.value]
    assert {fact.kind for fact in known} == set(KINDS) - {"purpose", "result"}


def test_a_tenth_of_the_subjects_of_each_kind_is_held_out() -> None:
    known = [*cldr_facts(), *arithmetic_facts()]
    for kind in set(KINDS) - {"purpose"}:
        subjects = {fact.subject: fact.is_heldout for fact in known if fact.kind == kind}
        assert 0.04 < sum(subjects.values()) / len(subjects) < 0.2


def test_results_of_arithmetic_are_those_of_the_calculator() -> None:
    calculator = Calculator.params().build()
    assert len(set(arithmetic_facts())) == 10_000
    for fact in arithmetic_facts()[::100]:
        assert calculator(fact.subject) == [fact.value]


def test_purposes_are_those_of_functions_with_one_short_summary(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "documented").mkdir()
    (tmp_path / "documented/a.py").write_text(
        'def clip(x):\n    """Limits the values of an array."""\n\n'
        'def twice(x):\n    """Doubles the values of it."""\n\n'
        'class Shape:\n    """The shape of an array."""\n\n'
        'def test_it():\n    """Tests the values of it."""\n\n'
        f'def long(x):\n    """Adds {"many " * 20}values."""\n'
    )
    (tmp_path / "documented/b.py").write_text(
        'def twice(x):\n    """Another function of that name."""\n'
    )
    found = documented_facts(Signatures.params(packages=["documented"]).build())
    assert found == (Fact("purpose", "clip", "Limits the values of an array."),)
    assert found[0].line == "clip / purpose / Limits the values of an array."


def test_without_babel_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "babel" else find(name, *a)
    )
    facts.cldr_facts.cache_clear()
    with pytest.raises(MissingPackage, match=r"needs babel, .*pip install 'lingo-tf\[dialog\]'"):
        cldr_facts()
