"""The file STATUS: one line with the state of a run.

done (early) at step 200
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, cast, get_args

State = Literal["running", "done", "done (early)", "stopped", "failed"]

_STATES = "|".join(map(re.escape, get_args(State)))
_LINE = re.compile(rf"({_STATES}) at step (\d{{1,18}})\n", re.ASCII)


class Status(NamedTuple):
    """The state of a run.

    Attributes:
        state: "running" also if the process was killed; "done (early)" if evaluations had stopped
            improving.
        step: steps done when it was written.
    """

    state: State
    step: int

    @property
    def is_done(self) -> bool:
        """Whether the run has finished."""
        return self.state in ("done", "done (early)")

    @property
    def is_over(self) -> bool:
        """Whether the run has finished or failed, and does not continue by itself."""
        return self.is_done or self.state == "failed"

    @property
    def line(self) -> str:
        """The text of the file."""
        return f"{self.state} at step {self.step}\n"


def parse_status(text: str) -> Status | None:
    """Returns the status in the text of the file, or None if it has none."""
    match = _LINE.fullmatch(text)
    return Status(cast(State, match[1]), int(match[2])) if match else None
