"""Small dialogs, and files of them, for tests."""

from __future__ import annotations

import pathlib

from tasks.dialog.turns import Dialog, Turn, to_json

CASUAL = Dialog(
    (
        Turn("user", "What's up?"),
        Turn("model", "not much.", {"sensible": 1, "interesting": 0, "unsafe": 0}),
    )
)
LONGER = Dialog(
    (
        Turn("model", "Hi, I speak first."),
        Turn("user", "How much is 135+7721?"),
        Turn("model", "TS, 135+7721", {"specific": 1}),
        Turn("tools", "7856"),
        Turn("model", "User, it is 7856.", {"sensible": 1, "specific": 1}),
    )
)


def write(path: pathlib.Path, *dialogs: Dialog) -> str:
    """Writes a file of dialogs; returns its path."""
    path.write_text("".join(to_json(dialog) + "\n" for dialog in dialogs))
    return str(path)
