"""Small talk is read from the files of a package; one laid out alike stands in for it here."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

from lingo.data.files import DataError
from tasks.dialog.templates import ResearchDialogs, TemplateDialogs, small_talk
from tasks.dialog.turns import Dialog, Turn


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    package = tmp_path / "chatterbot_corpus"
    (package / "data/english").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return package / "data/english"


def test_conversations_are_turns_of_user_and_model_in_the_order_of_files(folder) -> None:
    (folder / "b.yml").write_text("conversations:\n- - Hi\n  - Hello.\n  - 42\n- - alone\n")
    (folder / "a.yml").write_text(
        "categories:\n- AI\nconversations:\n- - What's up?\n  - Not much.\n"
    )
    assert small_talk() == [
        Dialog((Turn("user", "What's up?"), Turn("model", "Not much."))),
        Dialog((Turn("user", "Hi"), Turn("model", "Hello."), Turn("user", "42"))),
    ]


def test_the_id_of_dialogs_changes_with_their_small_talk(folder: pathlib.Path) -> None:
    def ids() -> list[str]:
        sources = [TemplateDialogs.params(num_dialogs=1), ResearchDialogs.params(num_dialogs=1)]
        return [params.build().content_id() for params in sources]

    before = ids()
    (folder / "a.yml").write_text("conversations:\n- - Hi\n  - Hello.\n")
    after = ids()
    assert after[0] != before[0]
    assert after[1] == before[1]  # it has no small talk


@pytest.mark.parametrize("text", ["conversations", "conversations: 3", "categories: []", "a: [b"])
def test_a_file_without_conversations_is_named(folder: pathlib.Path, text: str) -> None:
    (folder / "a.yml").write_text(text)
    with pytest.raises(DataError, match=r"a\.yml: no conversations"):
        small_talk()


def test_without_the_package_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert small_talk() == []
