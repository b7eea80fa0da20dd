"""The recipient of what a model writes."""

from __future__ import annotations

import pytest

from tasks.dialog.message import Message, parse_message


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("User, Hi.", Message("User", "Hi.")),
        ("  User ,Hi,\nyou. ", Message("User", "Hi,\nyou.")),
        ("TS, 1+1", Message("TS", "1+1")),
        ("TS,", Message("TS", "")),
        ("TS 1+1", Message("User", "TS 1+1", is_well_formed=False)),
        ("ts, 1+1", Message("User", "ts, 1+1", is_well_formed=False)),
        ("Users, TS, 1+1", Message("User", "Users, TS, 1+1", is_well_formed=False)),
        ("", Message("User", "", is_well_formed=False)),
    ],
)
def test_the_recipient_is_the_first_token(output: str, message: Message) -> None:
    assert parse_message(output) == message
