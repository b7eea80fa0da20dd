"""What is made of steps that are not finite, and of losses far above those before them.

An update that is not finite is left out by the step itself. The host counts, compares each loss
with a running mean and variance of those before it, and decides whether to go on, to go back to a
checkpoint from before the trouble, or to stop. It decides step by step, from numbers alone: the
same however many steps are done in one call, and after a resume.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from lingo.checkpoints.position import Health, Moment, RunCounters


class Anomaly(NamedTuple):
    """What is wrong with a run.

    Attributes:
        step: steps done when it became too much.
        steps: how many of them, the last ones, it has lasted.
        answer: what is asked for then.
        reason: in words.
        advice: how to go on if it stops, in words.
    """

    step: int
    steps: int
    action: Literal["rewind", "stop"]
    reason: str
    advice: str


def find_anomaly(health: Health, *, step: int, guard: Any, is_over: bool = False) -> Anomaly | None:
    """Returns what is wrong with a run, or None if it may go on.

    Args:
        health: how it is doing.
        step: steps done.
        guard: Params of a Guard.
        is_over: whether there will be no more: then it is too much that none was ever applied.
    """
    limit = 1 if guard.on_non_finite == "stop" else guard.max_skipped_steps
    if health.skipped and health.skipped >= (min(limit, step) if is_over else limit):
        answer = "rewind" if guard.on_non_finite == "rewind" and not is_over else "stop"
        reason = f"a loss, gradient or new value was not finite{_in_a_row(health.skipped)}"
        advice = (
            "No such step changed a weight. Lower optimizer.learning_rate or look at the data; or"
            " go on from here with guard.on_non_finite=skip and a larger guard.max_skipped_steps,"
            " or from before with guard.on_non_finite=rewind."
        )
    elif guard.on_spike == "report" or health.skipped or health.spiked < guard.max_spiked_steps:
        return None
    else:
        answer = guard.on_spike
        reason = f"the loss was a spike{_in_a_row(health.spiked)}"
        advice = (
            "Lower optimizer.learning_rate or look at the data; or go on from here with"
            " guard.on_spike=report, or from before with guard.on_spike=rewind."
        )
    if answer == "rewind":
        advice = "Lower optimizer.learning_rate or look at the data."
    return Anomaly(step, health.anomalous, answer, reason, advice)


def _in_a_row(times: int) -> str:
    return f" {times} times in a row" if times > 1 else ""


def first_anomaly(at: RunCounters, guard: Any, *, max_steps: int) -> Anomaly | None:
    """Returns what is wrong with a run, the first thing, or None if it may go on.

    Args:
        at: where the run stands.
        guard: Params of a Guard; not always the one by which it was in trouble.
        max_steps: after so many steps there will be no more.
    """
    moments = [Moment(at.step, at.health)]
    for moment in [at.pending_anomaly, *moments] if at.pending_anomaly else moments:
        is_over = moment.step >= max_steps
        if wrong := find_anomaly(moment.health, step=moment.step, guard=guard, is_over=is_over):
            return wrong
    return None


def record_anomaly(at: RunCounters, guard: Any, *, max_steps: int) -> RunCounters:
    """Returns the same position, with the trouble in it that is there by a guard."""
    wrong = first_anomaly(at, guard, max_steps=max_steps)
    if wrong is None:
        return at._replace(pending_anomaly=None)
    if wrong.step == at.step:
        return at._replace(pending_anomaly=Moment(at.step, at.health))
    return at
