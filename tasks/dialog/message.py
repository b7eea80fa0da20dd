"""Messages of a model: the first token is the recipient (Thoppilan et al. 2022).

User, It is 7856.       the answer
TS, 135+7721            a query to the toolset
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

_MESSAGE = re.compile(r"\s*(User|TS)\s*,(.*)", re.DOTALL)


class Message(NamedTuple):
    """A text that a model wrote, and its recipient."""

    recipient: Literal["User", "TS"]
    text: str
    is_well_formed: bool = True


def parse_message(output: str) -> Message:
    """Returns the message in a model's output.

    >>> parse_message("TS, 135+7721")
    Message(recipient='TS', text='135+7721', is_well_formed=True)
    >>> parse_message("It is 7856.")
    Message(recipient='User', text='It is 7856.', is_well_formed=False)
    """
    if (match := _MESSAGE.match(output)) is None:
        return Message("User", output.strip(), is_well_formed=False)
    return Message("TS" if match[1] == "TS" else "User", match[2].strip())
