"""Questions about facts: the same facts in both splits, in other sentences."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.data.index import open_index
from tasks.dialog.questions import FactQuestions

pytest.importorskip("babel", reason="needs pip install 'lingo-tf[dialog]'")


@pytest.fixture(scope="module")
def tables() -> dict[str, dict[str, set[str]]]:
    """The answers by question, for each choice of wordings."""
    found: dict[str, dict[str, set[str]]] = {}
    for wordings in ("train", "heldout"):
        index = open_index(FactQuestions.params(wordings=wordings).build())
        pairs = [text.decode().split("\x1e") for text in index.texts(np.arange(len(index.units)))]
        found[wordings] = {}
        for question, answer in pairs:
            found[wordings].setdefault(question, set()).add(answer)
    return found


def test_no_question_is_in_both_splits_but_every_answer_is(tables) -> None:
    train, heldout = tables["train"], tables["heldout"]
    assert not train.keys() & heldout.keys()
    assert set().union(*train.values()) == set().union(*heldout.values())
    assert len(train) > 2 * len(heldout) > 10_000


def test_answers_are_facts(tables) -> None:
    assert tables["train"]["What is the currency of Japan?"] == {"Japanese Yen"}
    assert tables["heldout"]["Which word does German have for Monday?"] == {"Montag"}
    assert all("{" not in question for table in tables.values() for question in table)
