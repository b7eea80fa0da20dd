"""STATUS: what is written is read, and nothing else."""

from __future__ import annotations

from typing import get_args

import pytest

from lingo.storage.status import State, Status, parse_status


@pytest.mark.parametrize("state", get_args(State))
def test_what_is_written_is_read(state: State) -> None:
    assert parse_status(Status(state, 200).line) == Status(state, 200)


@pytest.mark.parametrize(
    "text", ["", "hello", "done at step 5", "done at step -1\n", f"done at step {'9' * 5000}\n"]
)
def test_anything_else_says_nothing(text: str) -> None:
    assert parse_status(text) is None


def test_a_run_may_be_done_early() -> None:
    over = [state for state in get_args(State) if Status(state, 1).is_over]
    assert over == ["done", "done (early)", "failed"]
    done = [state for state in get_args(State) if Status(state, 1).is_done]
    assert done == ["done", "done (early)"]
