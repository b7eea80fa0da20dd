"""Which checkpoints are kept, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def select_kept(
    steps: Sequence[int],
    *,
    keep: int,
    keep_every_steps: int | None = None,
    best: Collection[int] = (),
    rewind: Collection[int] = (),
) -> dict[int, list[str]]:
    """Returns the steps whose checkpoints are kept, with the reasons; others may be deleted.

    A reason is "latest", "every", "best" or "rewind".

    Args:
        steps: of all checkpoints.
        keep: how many of the latest are kept.
        keep_every_steps: its multiples are kept for ever.
        best: steps that are kept because they are the best.
        rewind: steps that are kept because the run may rewind to them.
    """
    every = keep_every_steps
    reasons: dict[str, Collection[int]] = {
        "latest": sorted(steps)[-keep:],
        "every": [] if every is None else [step for step in steps if step % every == 0],
        "best": best,
        "rewind": rewind,
    }
    found = {step: [why for why, which in reasons.items() if step in which] for step in steps}
    return {step: why for step, why in sorted(found.items()) if why}
