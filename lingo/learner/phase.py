"""Phases of a step: parts of a model that learn in turn, each by its own loss.

    for each phase of `Task.phases()`, in order:
        if it is due:
            sums = total(gradients of the phase's loss, for the phase's weights alone)
            state = update(state, sums)              # the next phase sees the moved weights

So a generator learns against the critic that has just learned (Goodfellow et al. 2014, algorithm
1). A phase is like a step of its own: gradients are clipped by the norm of its weights, a value
that is not finite skips its update alone, and it has random numbers of its own. A phase that is not
due computes no loss, and leaves its weights, slots, averages and statistics as they are, bit for
bit. Schedules count steps. Optimizers that count updates, such as Adam, count a weight's own: for
a phase that is not due at every step, the state `phases/<name>/updates` has the number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import path
from lingo.layers.initial import ZEROS
from lingo.layers.tree import ParamSpec
from lingo.optim.pattern import check_patterns, check_used, match_patterns

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class Phase(NamedTuple):
    """A part of a task's step: which loss it minimizes, by which weights, at which steps.

    It moves the weights and the moving statistics whose whole names one of the patterns `weights`
    matches. Its other layers take part in the loss, and stay as they are.
    """

    weights: tuple[str, ...]  # regular expressions of whole names of weights and statistics
    loss: str = "loss"  # the task's method that returns the terms of the phase's loss
    every_steps: int = 1  # the phase is due at every such step
    first_step: int = 0  # the number of steps done before the phase is due for the first time

    @property
    def is_always_due(self) -> bool:
        return self.every_steps == 1 and self.first_step == 0

    def is_due(self, step: tf.Tensor) -> tf.Tensor:
        """Returns whether the phase is due, a bool scalar.

        `step` is an int32 scalar, the number of steps done before.
        """
        since = step - self.first_step
        return (since >= 0) & (tf.math.floormod(since, self.every_steps) == 0)

    def moves(self, where: str) -> bool:
        """Returns whether the phase moves the weight or statistic at a program path.

        Raises ParamError if it moves some of the layers that the tensor stacks, and not all.
        """
        matched = [bool(match_patterns(self.weights, name)) for name in path.names(where)]
        if any(matched) and not all(matched):
            raise ParamError(
                f"a phase moves only some of the layers that the tensor {where} stacks: give it all"
                " of them, or do not repeat these layers"
            )
        return all(matched)


Phases = Mapping[str, Phase]
"""The phases of a task by name, in the order in which a step does them."""


def are_always_due(phases: Phases) -> bool:
    """Returns whether every step does every phase."""
    return all(phase.is_always_due for phase in phases.values())


def count_path(name: str) -> str:
    """Returns the path of the state that counts the updates of a phase, a float32 scalar."""
    return f"phases/{name}/updates"


def states(phases: Phases) -> dict[str, ParamSpec]:
    """Returns path -> declaration of the counts of the phases that are not due at every step."""
    return declare_counts(
        count_path(name) for name, phase in phases.items() if not phase.is_always_due
    )


def count_updates(phases: Phases, where: str, step: Any, state: Mapping[str, Any]) -> Any:
    """Returns how often the weight at a program path was updated, int32, skipped updates included.

    `step` is an int32 scalar, the number of steps done before.
    """
    own = [name for name, phase in phases.items() if phase.moves(where)]
    if not own or any(phases[name].is_always_due for name in own):
        return step
    return sum_counts(map(count_path, own), state)


def declare_counts(paths: Iterable[str]) -> dict[str, ParamSpec]:
    """Returns path -> declaration of counts of updates, float32 scalars that begin at 0."""
    return {where: ParamSpec(where, (), (), "float32", ZEROS, 1) for where in paths}


def sum_counts(paths: Iterable[str], state: Mapping[str, Any]) -> tf.Tensor:
    """Returns the sum of the counts at these paths of the state, an int32 scalar."""
    return tf.cast(tf.add_n([state[where] for where in paths]), tf.int32)


# ---- checks --------------------------------------------------------------------------------------


def check_phases(phases: Phases, trained: Mapping[str, bool], statistics: Sequence[str]) -> None:
    """Raises ParamError unless each weight and each moving statistic has its phase.

    `trained` says, for each layer's weight by name, whether the optimizer moves it. `statistics`
    are the names of moving statistics that steps change.
    """
    if not isinstance(phases, Mapping):
        raise ParamError(f"phases returned {phases!r:.80}: a dict, {{name: Phase}}, is wanted")
    for name, phase in phases.items():
        _check_fields(name, phase)
        check_used(phase.weights, [*trained, *statistics])
        if not any(trained[where] for where in trained if match_patterns(phase.weights, where)):
            raise ParamError(
                f"the phase {name!r} moves no weight: the optimizer has Frozen them all"
            )
    if not phases:
        return
    for where in [*(name for name, is_trained in trained.items() if is_trained), *statistics]:
        own = [name for name, phase in phases.items() if match_patterns(phase.weights, where)]
        if not own:
            raise ParamError(
                f"no phase moves {where!r}, which would never be trained: add it to the `weights`"
                " of a phase; a weight that should stay as it is can be Frozen, by the optimizer"
                " ByPath"
            )
        if len(own) > 1:
            raise ParamError(
                f"the phases {' and '.join(map(repr, own))} move {where!r}: a weight belongs to one"
                " phase, whose loss may have several terms"
            )


def _check_fields(name: str, phase: Phase) -> None:
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ParamError(
            f"{name!r:.80} names a phase: use letters, digits, '.', '_' and '-', since the name"
            " becomes a part of tags and paths"
        )
    if not isinstance(phase, Phase):
        raise ParamError(f"{name!r} is {phase!r:.80}: a Phase of lingo is wanted")
    if not (
        isinstance(phase.weights, tuple | list)
        and phase.weights
        and all(isinstance(pattern, str) for pattern in phase.weights)
    ):
        raise ParamError(
            f"{name!r}: weights={phase.weights!r}: a tuple of regular expressions is wanted, such"
            " as ('generator/.*',)"
        )
    check_patterns(phase.weights)
    if not isinstance(phase.loss, str):
        raise ParamError(
            f"{name!r}: loss={phase.loss!r:.80}: the name of a method of the task is wanted"
        )
    for field, least in (("every_steps", 1), ("first_step", 0)):
        if type(value := getattr(phase, field)) is not int or value < least:
            raise ParamError(f"{name!r}: {field}={value!r} is not an int from {least}")
