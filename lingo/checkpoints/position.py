"""Where a run stands: what a checkpoint records beside tensors, so that a resume is exact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lingo.data.input import Input
from lingo.metrics.metric import State
from lingo.trainer.guard.guard import Health, Level, Moment, Trouble, trouble

_COUNTS = ("spiked", "troubled", "skipped_total", "spiked_total")
_LARGEST = 2**63 - 1


class Position(NamedTuple):
    """Where a run stands.

    Attributes:
        step: steps done.
        offset: batches that were passed over: the next one is number `step + offset`.
        rewinds: how often it went back to a checkpoint and passed over what had come after it.
        health: how it is doing.
        states: metric states added up since the last report.
        unanswered: when it first was in trouble; the steps since then were done in the same call.
    """

    step: int = 0
    offset: int = 0
    rewinds: int = 0
    health: Health = Health()
    states: Mapping[str, State] = {}
    unanswered: Moment | None = None

    def trouble(self, guard: Any, *, max_steps: int) -> Trouble | None:
        """Returns what is wrong with the run, the first thing, or None if it may go on.

        Args:
            guard: Params of a Guard; not always the one by which it was in trouble.
            max_steps: after so many steps there will be no more.
        """
        moments = [Moment(self.step, self.health)]
        for at in [self.unanswered, *moments] if self.unanswered else moments:
            is_over = at.step >= max_steps
            if wrong := trouble(at.health, step=at.step, guard=guard, is_over=is_over):
                return wrong
        return None

    def judged(self, guard: Any, *, max_steps: int) -> Position:
        """Returns the same position, with the trouble in it that is there by a guard."""
        wrong = self.trouble(guard, max_steps=max_steps)
        if wrong is None:
            return self._replace(unanswered=None)
        if wrong.step == self.step:
            return self._replace(unanswered=Moment(self.step, self.health))
        return self

    def metadata(self, input: Input) -> dict[str, Any]:
        """Returns what a checkpoint records of it, of JSON types.

        Args:
            input: of the training. `examples`, the number of the next one, and `epoch` are for
                people: they follow from the batch.
        """
        batch, late = self.step + self.offset, self.unanswered
        return {
            "data_position": {
                "step": self.step,
                "examples": input.examples_before(batch),
                "epoch": int(input.epochs(batch)),
                "offset": self.offset,
                "rewinds": self.rewinds,
            },
            **_recorded(self.health),
            "unanswered": None if late is None else {"step": late.step, **_recorded(late.health)},
            "metrics": {
                name: {key: [list(np.shape(v)), _hex(np.ravel(v))] for key, v in state.items()}
                for name, state in self.states.items()
            },
        }


def position(step: int, metadata: Mapping[str, Any]) -> Position:
    """Returns the position that a checkpoint records.

    Args:
        step: of the checkpoint.
        metadata: what it records, of any JSON types; what it does not say is as at the beginning.

    Raises:
        ValueError: if it says what cannot be, in words.
    """
    try:
        return _position(step, metadata)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"its position is not one that was written: {error}") from error


def _position(step: int, metadata: Mapping[str, Any]) -> Position:
    data, late = metadata.get("data_position", {}), metadata.get("unanswered")
    states = {
        name: {key: _array(*value) for key, value in state.items()}
        for name, state in metadata.get("metrics", {}).items()
    }
    return Position(
        step,
        offset=_count(data.get("offset", 0)),
        rewinds=_count(data.get("rewinds", 0)),
        health=_health(step, metadata),
        states=states,
        unanswered=None if late is None else _moment(late, before=step),
    )


def _recorded(health: Health) -> dict[str, Any]:
    level = health.level
    return {
        "skipped_steps": health.skipped,
        "guard": {
            **{name: getattr(health, name) for name in _COUNTS},
            "level": [level.count, *_hex([level.mean, level.variance])],
        },
    }


def _health(step: int, recorded: Mapping[str, Any]) -> Health:
    guard = recorded.get("guard", {})
    count, mean, variance = guard.get("level", (0, "0x0p+0", "0x0p+0"))
    health = Health(
        skipped=_count(recorded.get("skipped_steps", 0)),
        level=Level(_count(count), float.fromhex(mean), float.fromhex(variance)),
        **{name: _count(guard.get(name, 0)) for name in _COUNTS},
    )
    counted = max(health.skipped, health.spiked, health.troubled) <= step
    if not (counted and math.isfinite(health.level.mean) and 0 <= health.level.variance < math.inf):
        raise ValueError(f"its position is not one that a run can have after {step} steps")
    return health


def _moment(recorded: Mapping[str, Any], *, before: int) -> Moment:
    step = _count(recorded["step"])
    if step > before:
        raise ValueError(f"its position has step {step} after step {before}")
    return Moment(step, _health(step, recorded))


def _hex(numbers: Any) -> list[str]:
    return [float(number).hex() for number in numbers]


def _array(shape: Any, texts: Any) -> np.ndarray:
    return np.reshape([float.fromhex(text) for text in texts], shape)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError(f"a count in its position is {value!r:.40}")
    return value
