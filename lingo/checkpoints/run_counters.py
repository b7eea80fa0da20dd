"""The counters of a run: checkpoints record them, so that a run resumes exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.data.input import Input
from lingo.metrics.metric import State

_COUNTS = {
    "spiked": "num_spiked",
    "anomalous": "num_anomalous",
    "skipped_total": "skipped_total",
    "spiked_total": "spiked_total",
}
"""Key in a checkpoint -> field of Health."""
_LARGEST = 2**63 - 1
# Least standard deviation relative to the mean: losses of memorized data are constant.
_LEAST_SPREAD = 1e-3
_TINY = 1e-30  # least standard deviation, for a mean of 0


class Level(NamedTuple):
    """Moving mean and variance of losses."""

    # Number of losses, at most the window's size; until then all losses have equal weight.
    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, loss: float, *, steps: int) -> Level:
        """Returns the level after one more loss, over a window of about `steps` losses."""
        count = min(self.count + 1, steps)
        delta = loss - self.mean
        variance = (1.0 - 1.0 / count) * (self.variance + delta * delta / count)
        return Level(count, self.mean + delta / count, variance)

    def deviations(self, loss: float) -> float:
        """Returns how many standard deviations a loss is above the mean."""
        spread = max(math.sqrt(self.variance), _LEAST_SPREAD * abs(self.mean), _TINY)
        return (loss - self.mean) / spread


class Health(NamedTuple):
    """Counts of skipped steps and loss spikes, and the loss's level, for `trainer/guard`."""

    num_skipped: int = 0  # consecutive latest steps that were not finite and changed nothing
    num_spiked: int = 0  # consecutive latest finite steps whose loss was a spike
    num_anomalous: int = 0  # consecutive latest steps that were not finite, or whose loss spiked
    skipped_total: int = 0
    spiked_total: int = 0
    level: Level = Level()  # of the losses of all steps that were not anomalous
    levels: Mapping[str, Level] = {}  # the level of each of several tasks; `level` is the latest

    def add_step(self, loss: float, *, is_finite: bool, guard: Any, task: str = "") -> Health:
        """Returns the health after one more step, of one of several tasks if `task` is given.

        Neither a loss that is not finite nor a spike changes the level. If losses stay high for
        more than `spike_steps` finite steps, they become the new level.
        """
        if not is_finite:
            return self._replace(
                num_skipped=self.num_skipped + 1,
                num_anomalous=self.num_anomalous + 1,
                skipped_total=self.skipped_total + 1,
            )
        if task:
            own = self._replace(level=self.levels.get(task, Level()))
            after = own.add_step(loss, is_finite=is_finite, guard=guard)
            return after._replace(levels={**self.levels, task: after.level})
        steps = guard.spike_steps
        rest = self._replace(num_skipped=0, num_spiked=0, num_anomalous=0)
        if self.level.count < steps or self.level.deviations(loss) <= guard.spike_deviations:
            return rest._replace(level=self.level.add(loss, steps=steps))
        if self.num_spiked + 1 > steps:
            return rest._replace(level=Level().add(loss, steps=steps))
        return rest._replace(
            num_spiked=self.num_spiked + 1,
            num_anomalous=self.num_anomalous + 1,
            spiked_total=self.spiked_total + 1,
        )

    def counters(self) -> dict[str, float]:
        """Returns TensorBoard tag -> value: 1 or 0 for the last step, and counts of all steps."""
        return {
            "learner/skipped": float(self.num_skipped > 0),
            "learner/skipped_total": float(self.skipped_total),
            "learner/loss_spike": float(self.num_spiked > 0 and not self.num_skipped),
            "learner/loss_spike_total": float(self.spiked_total),
        }


class HealthSnapshot(NamedTuple):
    """The health of a run after some step."""

    step: int
    health: Health


class RunCounters(NamedTuple):
    """A run's progress and health."""

    step: int = 0
    offset: int = 0  # number of skipped batches: the next batch has the index `step + offset`
    rewinds: int = 0  # how often it went back to a checkpoint and skipped the batches after it
    health: Health = Health()
    # Metric -> {state: array of any shape}, summed since the last report.
    states: Mapping[str, State] = {}
    # Step and health at the first anomaly that the guard has not acted on yet; None without such an
    # anomaly. The steps after it were done in the same call of the program.
    pending_anomaly: HealthSnapshot | None = None

    def metadata(self, input: Input) -> dict[str, Any]:
        """Returns the counters as a checkpoint records them, in JSON types.

        The training `input` adds the next example and the epoch, for human readers.
        """
        batch, pending = self.step + self.offset, self.pending_anomaly
        return {
            "data_position": {
                "step": self.step,
                "examples": input.examples_before(batch),
                "epoch": int(input.epochs(batch)),
                "offset": self.offset,
                "rewinds": self.rewinds,
            },
            **_health_record(self.health),
            "pending_anomaly": None
            if pending is None
            else {"step": pending.step, **_health_record(pending.health)},
            "metrics": {
                name: {key: [list(np.shape(v)), _hex(np.ravel(v))] for key, v in state.items()}
                for name, state in self.states.items()
            },
        }


def read_counters(step: int, metadata: Mapping[str, Any]) -> RunCounters:
    """Returns the counters in a checkpoint's metadata; missing counters get initial values.

    `metadata` may hold any JSON values. Raises ValueError if a counter is invalid.
    """
    try:
        return _read_counters(step, metadata)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"its counters are invalid: {error}") from error


def _read_counters(step: int, metadata: Mapping[str, Any]) -> RunCounters:
    data, pending = metadata.get("data_position", {}), metadata.get("pending_anomaly")
    states = {
        name: {key: _array(*value) for key, value in state.items()}
        for name, state in metadata.get("metrics", {}).items()
    }
    return RunCounters(
        step,
        offset=_count(data.get("offset", 0)),
        rewinds=_count(data.get("rewinds", 0)),
        health=_health(step, metadata),
        states=states,
        pending_anomaly=None if pending is None else _read_snapshot(pending, before=step),
    )


def _health_record(health: Health) -> dict[str, Any]:
    levels = {task: _level_record(level) for task, level in health.levels.items()}
    return {
        "skipped_steps": health.num_skipped,
        "guard": {
            **{key: getattr(health, field) for key, field in _COUNTS.items()},
            "level": _level_record(health.level),
            **({"levels": levels} if levels else {}),
        },
    }


def _level_record(level: Level) -> list[Any]:
    return [level.count, *_hex([level.mean, level.variance])]


def _level(recorded: Sequence[Any]) -> Level:
    count, mean, variance = recorded
    level = Level(_count(count), float.fromhex(mean), float.fromhex(variance))
    if not (math.isfinite(level.mean) and 0 <= level.variance < math.inf):
        raise ValueError(f"its level of losses is impossible: {level}")
    return level


def _health(step: int, recorded: Mapping[str, Any]) -> Health:
    guard = recorded.get("guard", {})
    health = Health(
        num_skipped=_count(recorded.get("skipped_steps", 0)),
        level=_level(guard.get("level", (0, "0x0p+0", "0x0p+0"))),
        levels={task: _level(level) for task, level in guard.get("levels", {}).items()},
        **{field: _count(guard.get(key, 0)) for key, field in _COUNTS.items()},
    )
    if max(health.num_skipped, health.num_spiked, health.num_anomalous) > step:
        raise ValueError(f"its counters are impossible after {step} steps")
    return health


def _read_snapshot(recorded: Mapping[str, Any], *, before: int) -> HealthSnapshot:
    step = _count(recorded["step"])
    if step > before:
        raise ValueError(f"its anomaly is at step {step}, after step {before}")
    return HealthSnapshot(step, _health(step, recorded))


def _hex(numbers: Any) -> list[str]:
    return [float(number).hex() for number in numbers]


def _array(shape: Any, texts: Any) -> np.ndarray:
    return np.reshape([float.fromhex(text) for text in texts], shape)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError(f"a counter is {value!r:.40}, not in 0..{_LARGEST}")
    return value
