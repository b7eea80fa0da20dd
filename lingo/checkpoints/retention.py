"""Which checkpoints of a run are kept, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Retention(NamedTuple):
    """What is kept of the checkpoints of a run: each field is a rule, and one that holds is enough.

    `latest=None` keeps all of them.
    """

    latest: int | None = None  # how many of the highest steps
    every: int | None = None  # multiples of this step
    best: Collection[int] = ()  # steps: the best by `evaluate.metric`
    rewind: Collection[int] = ()  # steps: where a rewind would go

    def reasons(self, steps: Sequence[int]) -> dict[int, list[str]]:
        """Returns the steps that are kept, lowest first, each with the names of its rules."""
        rules: dict[str, Collection[int]] = {
            "latest": steps if self.latest is None else sorted(steps)[-self.latest :],
            "every": [step for step in steps if self.every and step % self.every == 0],
            "best": self.best,
            "rewind": self.rewind,
        }
        found = {step: [rule for rule, kept in rules.items() if step in kept] for step in steps}
        return {step: names for step, names in sorted(found.items()) if names}


KEEP_ALL = Retention()
