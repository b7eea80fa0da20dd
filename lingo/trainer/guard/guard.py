"""What is made of steps that are not finite, and of losses far above those before them.

An update that is not finite is left out by the step itself. The host counts, compares each loss
with a running mean and variance of those before it, and decides whether to go on, to go back to a
checkpoint from before the trouble, or to stop. It decides step by step, from numbers alone: the
same however many steps are done in one call, and after a resume.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from lingo.config import ranges
from lingo.config.params import Configurable

_LEAST_SPREAD = 1e-3  # of the mean: losses learned by heart hardly vary
_TINY = 1e-30  # and those that are all 0 not at all


class Guard(Configurable):
    """What happens when a loss or gradient is not finite, or a loss is far above those before it.

    An update that is not finite is left out, whatever is set here. `skip` stops the run after too
    many in a row, `rewind` goes back then, `stop` stops at the first. To rewind is to go back to
    the latest checkpoint from before the trouble, and on with the data that comes after it
    (Chowdhery et al. 2022, sec. 5.1).
    """

    on_non_finite: Literal["skip", "rewind", "stop"] = "skip"  # what one that is not calls for
    max_skipped_steps: int = 10  # updates left out in a row that are too many
    on_spike: Literal["report", "rewind", "stop"] = "report"  # what a spike of the loss calls for
    max_spiked_steps: int = 1  # spikes in a row that call for it
    spike_deviations: float = 6.0  # a loss so many standard deviations above the mean is a spike
    spike_steps: int = 100  # steps that mean and deviation remember; before so many, no spike
    max_rewinds: int = 10  # in all; the next one stops the run

    def check(self) -> None:
        ranges.check_finite(self.p)
        ranges.check_positive(self.p, "max_skipped_steps", "max_spiked_steps")
        ranges.check_positive(self.p, "spike_deviations", "spike_steps")
        ranges.check_not_negative(self.p, "max_rewinds")


class Level(NamedTuple):
    """Mean and variance of losses, the latest weighing most.

    Attributes:
        count: losses seen, as far as they are remembered; until then all weigh the same.
        mean: of them.
        variance: of them.
    """

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def after(self, loss: float, *, steps: int) -> Level:
        """Returns the level after one more loss, remembering about `steps` of them."""
        count = min(self.count + 1, steps)
        delta = loss - self.mean
        variance = (1.0 - 1.0 / count) * (self.variance + delta * delta / count)
        return Level(count, self.mean + delta / count, variance)

    def deviations(self, loss: float) -> float:
        """Returns how many standard deviations a loss is above the mean."""
        spread = max(math.sqrt(self.variance), _LEAST_SPREAD * abs(self.mean), _TINY)
        return (loss - self.mean) / spread


class Health(NamedTuple):
    """How a run is doing.

    Attributes:
        skipped: how many of its steps, the last ones, changed nothing: they were not finite.
        spiked: of how many, the last ones that were finite, the loss was a spike.
        troubled: how many, the last ones, were the one or the other.
        skipped_total: how many changed nothing in all.
        spiked_total: how many had a spike in all.
        level: of the losses that were neither.
    """

    skipped: int = 0
    spiked: int = 0
    troubled: int = 0
    skipped_total: int = 0
    spiked_total: int = 0
    level: Level = Level()

    def after(self, loss: float, *, is_finite: bool, guard: Any) -> Health:
        """Returns how the run is doing after one more step.

        Neither a loss that is not finite nor a spike changes the level. One that stays up for
        `spike_steps` was no spike: it is the new level.

        Args:
            loss: of the step.
            is_finite: whether its update was applied.
            guard: Params of a Guard.
        """
        if not is_finite:
            return self._replace(
                skipped=self.skipped + 1,
                troubled=self.troubled + 1,
                skipped_total=self.skipped_total + 1,
            )
        steps = guard.spike_steps
        rest = self._replace(skipped=0, spiked=0, troubled=0)
        if self.level.count < steps or self.level.deviations(loss) <= guard.spike_deviations:
            return rest._replace(level=self.level.after(loss, steps=steps))
        if self.spiked + 1 > steps:
            return rest._replace(level=Level().after(loss, steps=steps))
        return rest._replace(
            spiked=self.spiked + 1,
            troubled=self.troubled + 1,
            spiked_total=self.spiked_total + 1,
        )

    def counters(self) -> dict[str, float]:
        """Returns what a report says of the last step, and of all, by TensorBoard tag."""
        return {
            "learner/skipped": float(self.skipped > 0),
            "learner/skipped_total": float(self.skipped_total),
            "learner/loss_spike": float(self.spiked > 0 and not self.skipped),
            "learner/loss_spike_total": float(self.spiked_total),
        }


class Moment(NamedTuple):
    """How a run was doing at some time.

    Attributes:
        step: steps done then.
        health: how it was doing.
    """

    step: int
    health: Health


class Trouble(NamedTuple):
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
    answer: Literal["rewind", "stop"]
    reason: str
    advice: str


def trouble(health: Health, *, step: int, guard: Any, is_over: bool = False) -> Trouble | None:
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
    return Trouble(step, health.troubled, answer, reason, advice)


def _in_a_row(times: int) -> str:
    return f" {times} times in a row" if times > 1 else ""
