"""The guard decides what to do about steps that are not finite, and about spikes of the loss.

The step itself skips an update that is not finite. The host counts these, compares each loss with
a running mean and variance of earlier ones, and decides whether to continue, to rewind to a
checkpoint from before the anomaly, or to stop. It decides step by step, from numbers alone: the
same however many steps are done in one call, and after a resume.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from lingo.checkpoints.run_counters import Health, HealthSnapshot, RunCounters


class Anomaly(NamedTuple):
    """An anomaly of a run that requires an action."""

    step: int  # steps done when the guard's limit was reached
    steps: int  # anomalous steps in a row up to then
    action: Literal["rewind", "stop"]
    reason: str
    advice: str  # what the user can do if the run stops

    @property
    def sound_step(self) -> int:
        """The number of steps done before the first anomalous one."""
        return self.step - self.steps


def diagnose(health: Health, *, step: int, guard: Any, is_over: bool = False) -> Anomaly | None:
    """Returns the anomaly of a run, or None if the run may continue.

    After the last step (`is_over`) it is an anomaly if all steps were skipped.
    """
    limit = 1 if guard.on_non_finite == "stop" else guard.max_skipped_steps
    if health.num_skipped and health.num_skipped >= (min(limit, step) if is_over else limit):
        action = "rewind" if guard.on_non_finite == "rewind" and not is_over else "stop"
        reason = f"a loss, gradient or new value was not finite{_in_a_row(health.num_skipped)}"
        advice = (
            "No such step changed a weight. Lower optimizer.learning_rate or look at the data; or"
            " go on from here with guard.on_non_finite=skip and a larger guard.max_skipped_steps,"
            " or from before with guard.on_non_finite=rewind."
        )
    elif (
        guard.on_spike == "report"
        or health.num_skipped
        or health.num_spiked < guard.max_spiked_steps
    ):
        return None
    else:
        action = guard.on_spike
        reason = f"the loss was a spike{_in_a_row(health.num_spiked)}"
        advice = (
            "Lower optimizer.learning_rate or look at the data; or go on from here with"
            " guard.on_spike=report, or from before with guard.on_spike=rewind."
        )
    if action == "rewind":
        advice = "Lower optimizer.learning_rate or look at the data."
    return Anomaly(step, health.num_anomalous, action, reason, advice)


def _in_a_row(times: int) -> str:
    return f" {times} times in a row" if times > 1 else ""


def find_first_anomaly(counters: RunCounters, guard: Any, *, max_steps: int) -> Anomaly | None:
    """Returns the pending anomaly of a run, else that of its latest step, or None.

    The guard may have changed since the pending anomaly was recorded.
    """
    now = HealthSnapshot(counters.step, counters.health)
    for step, health in filter(None, (counters.pending_anomaly, now)):
        if anomaly := diagnose(health, step=step, guard=guard, is_over=step >= max_steps):
            return anomaly
    return None


def record_anomaly(counters: RunCounters, guard: Any, *, max_steps: int) -> RunCounters:
    """Returns the counters with `pending_anomaly` set to the run's first anomaly, or None."""
    anomaly = find_first_anomaly(counters, guard, max_steps=max_steps)
    if anomaly is None:
        return counters._replace(pending_anomaly=None)
    if anomaly.step == counters.step:
        return counters._replace(pending_anomaly=HealthSnapshot(counters.step, counters.health))
    return counters
