"""Waiting for work."""

from __future__ import annotations

import threading

import pytest

from lingo.cli.waiting import run_with_clock


def test_the_result_comes_from_another_thread_and_stdout_stays_empty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = threading.get_ident()
    assert run_with_clock("working", lambda: threading.get_ident() != here)
    assert capsys.readouterr() == ("", "working\n")


def test_an_error_of_the_work_is_raised() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_with_clock("working", fail)
