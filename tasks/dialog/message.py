"""To whom a model writes: the first token of its text is the recipient (Thoppilan et al. 2022).

User, It is 7856.       the answer
TS, 135+7721            a query to the toolset
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

_MESSAGE = re.compile(r"\s*(User|TS)\s*,(.*)", re.DOTALL)


class Message(NamedTuple):
    """What a model wrote, and to whom."""

    recipient: Literal["User", "TS"]
    text: str
    is_well_formed: bool = True


def parse_message(output: str) -> Message:
    """Returns what a model wrote, with its recipient.

    >>> parse_message("TS, 135+7721")
    Message(recipient='TS', text='135+7721', is_well_formed=True)
    >>> parse_message("It is 7856.")
    Message(recipient='User', text='It is 7856.', is_well_formed=False)
    """
    if (match := _MESSAGE.match(output)) is None:
        return Message("User", output.strip(), is_well_formed=False)
    return Message("TS" if match[1] == "TS" else "User", match[2].strip())
