"""Dialogs in files: what is read is what was written, and a bad line is named."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from lingo.data.files import DataError
from tasks.dialog.turns import Dialog, DialogFiles, Turn, dialog_of, to_json
from tests.tasks.dialog.dialogs import CASUAL, LONGER, write

GOOD = {"speaker": "model", "text": "not much."}
WRONG = [
    ("not JSON", "not JSON"),
    ("[]", 'no dialog: wanted {"turns"'),
    ({"turns": []}, "no dialog"),
    ({"turns": [GOOD, "hi"]}, "turn 2 is no object: wanted speaker and text"),
    (
        {"turns": [GOOD | {"speaker": "bot"}]},
        "turn 1: speaker is 'bot': wanted 'user', 'model', 't",
    ),
    ({"turns": [GOOD | {"text": " "}]}, "text is ' ': wanted a string with a word in it"),
    ({"turns": [{"speaker": "user"}]}, "text is None"),
    (
        {"turns": [GOOD | {"rating": {}}]},
        "turn 1 has 'rating': wanted 'speaker', 'text', 'ratings'",
    ),
    ({"turns": [GOOD | {"ratings": {"safe": 1}}]}, "ratings have 'safe': wanted 'sensible', 'sp"),
    ({"turns": [GOOD | {"ratings": [1]}]}, r"ratings have \[1\]"),
    ({"turns": [GOOD | {"ratings": {"unsafe": True}}]}, "unsafe is True: wanted 0 or 1"),
    ({"turns": [GOOD | {"ratings": {"unsafe": 2}}]}, "unsafe is 2: wanted 0 or 1"),
    (
        {"turns": [GOOD | {"speaker": "user", "ratings": {}}]},
        "has ratings: wanted them on turns of",
    ),
]


def files(pattern: str, **fields: Any) -> DialogFiles:
    return DialogFiles.params(pattern=pattern, **fields).build()


def test_dialogs_of_a_file_are_those_that_were_written(tmp_path: pathlib.Path) -> None:
    assert files(write(tmp_path / "a.jsonl", CASUAL, LONGER)).dialogs() == [CASUAL, LONGER]
    assert dialog_of(json.loads(to_json(LONGER)), "") == LONGER


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_a_line_that_is_no_dialog_is_named(line: Any, message: str, tmp_path: pathlib.Path) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    (tmp_path / "a.jsonl").write_text(f"{to_json(CASUAL)}\n\n{text}\n")
    with pytest.raises(DataError, match=rf"a.jsonl, line 3, .*{message}"):
        files(f"{tmp_path}/a.jsonl").dialogs()


def test_damaged_lines_may_be_left_out(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_text(f"{to_json(CASUAL)}\nnothing\n{to_json(LONGER)}\n")
    assert files(f"{tmp_path}/a.jsonl", max_damaged=1).dialogs() == [CASUAL, LONGER]


def test_half_a_surrogate_pair_becomes_a_question_mark(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"turns": [GOOD | {"text": "a\ud800b"}]}))
    ((turn,),) = files(f"{tmp_path}/a.jsonl").dialogs()[0]
    assert turn.text == "a?b"


def test_splits_share_no_dialog_and_have_all(tmp_path: pathlib.Path) -> None:
    dialogs = [Dialog((Turn("user", f"a {i}"), Turn("model", f"b {i}"))) for i in range(50)]
    pattern = write(tmp_path / "a.jsonl", *dialogs)
    fraction = {"heldout_fraction": 0.3}
    train = files(pattern, split="train", **fraction).dialogs()
    heldout = files(pattern, split="heldout", **fraction).dialogs()
    assert 0 < len(heldout) < len(train)
    assert sorted(train + heldout) == sorted(dialogs)


def test_responses_are_turns_of_the_model_that_answer_something() -> None:
    responses = list(LONGER.responses())
    assert [len(response.context) for response in responses] == [2, 4]
    assert responses[1].turn.text == "User, it is 7856."


def test_queries_to_tools_are_read_until_the_model_answers_the_user() -> None:
    more = (Turn("user", "Thanks."), Turn("model", "User, any time."))
    *_, last = Dialog(LONGER.turns + more).responses()
    texts = ["Hi, I speak first.", "How much is 135+7721?", "it is 7856.", "Thanks."]
    assert [turn.text for turn in last.context] == texts
