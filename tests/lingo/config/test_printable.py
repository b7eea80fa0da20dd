"""What a terminal is shown."""

from __future__ import annotations

from lingo.config.printable import escape_controls, escape_text


def test_what_a_terminal_would_obey_is_escaped_and_text_stays() -> None:
    assert escape_controls("é 日本\n'x'") == "é 日本\n'x'"
    assert escape_controls("\x1b[31m\r\b\ud800\u202e\x9b") == r"\x1b[31m\r\x08\ud800\u202e\x9b"


def test_nothing_in_a_models_text_is_obeyed_by_a_terminal() -> None:
    assert escape_text("a\n\tü\x1b[2J\udcff\r") == "a\n\tü\\x1b[2J\\udcff\\r"
