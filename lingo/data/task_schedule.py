"""Schedules of tasks: the probability with which each task of a `MultiTaskInput` is trained next.

    ExponentialTasks.params(start={"lm": 0.9, "mt": 0.1}, end={"lm": 0.2, "mt": 0.8}, alpha=0.01)

A cycle is a number of consecutive steps that train one task (`MultiTaskInput.cycle_steps`). The
schedules and their formulas are from Lingvo's `task_scheduler.py`, where their names lack `Tasks`.
Lingvo's adaptive schedules take two tasks, these take any number. A schedule is a function of the
cycle, and of evaluations that were made before it, so a run resumes exactly.

Axes: N cycles, K tasks, in the order of the input's `inputs`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.params import Configurable, ParamError, suggest


class Evaluated(NamedTuple):
    """The metrics of an evaluation."""

    step: int  # number of training steps before the evaluation
    metrics: Mapping[str, float]  # "input/metric" -> value


class Timeline(NamedTuple):
    """What a schedule knows besides the cycle: the steps of cycles, and earlier evaluations."""

    cycle_steps: int = 1  # steps per cycle
    first_step: int = 0  # the first step of cycle 0
    evaluations: tuple[Evaluated, ...] = ()  # by rising step

    def steps(self, cycles: np.ndarray) -> np.ndarray:
        """Returns the first step of each cycle, int64 [N]."""
        return self.first_step + cycles * self.cycle_steps

    def starts(self, lengths: Sequence[int]) -> list[int]:
        """Returns the first cycle of each of some parts, which last `lengths` steps.

        The next part begins with the first cycle at or after the end of the part before, at most
        one part per cycle. The last part never ends, so its length is not used.
        """
        starts = [0]
        for end in itertools.accumulate(lengths[:-1]):
            first = -(-(end - self.first_step) // self.cycle_steps)
            starts.append(max(starts[-1] + 1, first))
        return starts


NO_TIMELINE = Timeline()


class TaskSchedule(Configurable, interface=True):
    """How often each task is trained. Subclasses define `probabilities`.

    >>> class FirstTask(TaskSchedule):
    ...     def probabilities(self, cycles, timeline=NO_TIMELINE):
    ...         return np.eye(1, len(self.p.tasks)).repeat(len(cycles), axis=0)
    >>> FirstTask.params(tasks=("lm", "mt")).build().probabilities(np.array([0, 9]))
    array([[1., 0.],
           [1., 0.]])
    """

    tasks: tuple[str, ...]  # names of the tasks; the MultiTaskInput passes them down

    def probabilities(self, cycles: np.ndarray, timeline: Timeline = NO_TIMELINE) -> np.ndarray:
        """Returns the probability of each task in each cycle, float64 [N, K]; rows add up to 1.

        `cycles` are int64 [N], from 0.
        """
        raise self._missing_method("probabilities", "it returns float64 [N, K]")

    def metrics(self) -> list[str]:
        """Returns the metrics, "input/metric", that decide over later cycles."""
        return []

    def _task_numbers(self, field: str) -> np.ndarray:
        """Returns the numbers of a field {task: number} in the order of the tasks, float64 [K]."""
        given, tasks = getattr(self.p, field), self.p.tasks
        self._check_tasks(field, given)
        if lacking := [name for name in tasks if name not in given]:
            raise ParamError(f"{field} has no {lacking[0]!r}: give a number for each task")
        numbers = np.array([given[name] for name in tasks], np.float64)
        if not (np.isfinite(numbers).all() and (numbers >= 0).all() and numbers.sum() > 0):
            raise ParamError(f"{field}={dict(given)}: numbers are at least 0, and one is above 0")
        return numbers

    def _check_tasks(self, field: str, names: Any) -> None:
        """Raises ParamError unless all `names`, in a field, are names of tasks."""
        for name in names:
            if name not in (tasks := self.p.tasks):
                listed = ", ".join(tasks)
                raise ParamError(
                    f"{field} names {name!r}, which is no task of the input: {listed}."
                    f"{suggest(name, tasks)}"
                )


class ConstantTasks(TaskSchedule):
    """The same probabilities in every cycle, proportional to `weights`.

    >>> schedule = ConstantTasks.params(weights={"lm": 1, "mt": 3}, tasks=("lm", "mt")).build()
    >>> schedule.probabilities(np.array([0, 9]))
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """

    weights: dict[str, float] = {}  # task -> relative probability; empty: all alike

    def setup(self) -> None:
        num = len(self.p.tasks)
        numbers = self._task_numbers("weights") if self.p.weights else np.ones(num)
        self._shares = numbers / numbers.sum()

    def probabilities(self, cycles: np.ndarray, timeline: Timeline = NO_TIMELINE) -> np.ndarray:
        return np.tile(self._shares, (len(cycles), 1))


class _ShiftedExponential(TaskSchedule, interface=True):
    """Probabilities proportional to a + b exp(-alpha step), from `start` to `end`."""

    start: dict[str, float]  # task -> relative probability at step 0
    end: dict[str, float]  # task -> relative probability after many steps
    alpha: float = 0.01  # how fast probabilities change, per step

    def check(self) -> None:
        ranges.check_positive(self.p, "alpha")

    def setup(self) -> None:
        self._start, self._end = self._task_numbers("start"), self._task_numbers("end")

    def _scale(self) -> np.ndarray:
        """Returns the factor b of each task, float64 [K]."""
        raise NotImplementedError

    def probabilities(self, cycles: np.ndarray, timeline: Timeline = NO_TIMELINE) -> np.ndarray:
        decay = np.exp(-self.p.alpha * timeline.steps(cycles))
        scores = self._end + self._scale() * decay[:, None]
        return scores / scores.sum(axis=1, keepdims=True)


class ExponentialTasks(_ShiftedExponential):
    """Relative probabilities go from `start` to `end` by exp(-alpha step).

    >>> one, other = {"lm": 1.0, "mt": 0.0}, {"lm": 0.0, "mt": 1.0}
    >>> schedule = ExponentialTasks.params(start=one, end=other, tasks=("lm", "mt")).build()
    >>> schedule.probabilities(np.array([0, 50]))[:, 0].round(4)
    array([1.    , 0.6065])
    """

    def _scale(self) -> np.ndarray:
        return self._start - self._end


class SigmoidTasks(_ShiftedExponential):
    """Like `ExponentialTasks`, but slower at first: for two tasks, part of a logistic curve.

    >>> one, other = {"lm": 1.0, "mt": 0.0}, {"lm": 0.0, "mt": 1.0}
    >>> schedule = SigmoidTasks.params(start=one, end=other, tasks=("lm", "mt")).build()
    >>> schedule.probabilities(np.array([0, 50]))[:, 0].round(4)
    array([1.    , 0.7551])
    """

    def _scale(self) -> np.ndarray:
        return 2.0 * self._start - self._end


class RoundRobinTasks(TaskSchedule):
    """Every task in turn, one cycle each.

    >>> schedule = RoundRobinTasks.params(tasks=("lm", "mt")).build()
    >>> schedule.probabilities(np.array([0, 1, 2]))[:, 0]
    array([1., 0., 1.])
    """

    order: tuple[str, ...] = ()  # the tasks in turn, any of them several times; empty: all tasks

    def setup(self) -> None:
        order, tasks = self.p.order or self.p.tasks, list(self.p.tasks)
        self._check_tasks("order", order)
        self._order = np.array([tasks.index(name) for name in order])

    def probabilities(self, cycles: np.ndarray, timeline: Timeline = NO_TIMELINE) -> np.ndarray:
        return np.eye(len(self.p.tasks))[self._order[cycles % len(self._order)]]


class SequentialTasks(TaskSchedule):
    """One task after the other, each for a number of steps; the last one never ends.

    A task ends with the first cycle that reaches its number of steps, and each part has at least
    one cycle.

    >>> parts = (("lm", 2), ("mt", 2))
    >>> schedule = SequentialTasks.params(parts=parts, tasks=("lm", "mt")).build()
    >>> schedule.probabilities(np.array([1, 2, 9]))[:, 0]
    array([1., 0., 0.])
    """

    parts: tuple[tuple[str, int], ...]  # each task, and for how many steps it is trained

    def check(self) -> None:
        _check_parts(self.p.parts)

    def setup(self) -> None:
        tasks = list(self.p.tasks)
        self._check_tasks("parts", [name for name, _ in self.p.parts])
        self._order = np.array([tasks.index(name) for name, _ in self.p.parts])

    def probabilities(self, cycles: np.ndarray, timeline: Timeline = NO_TIMELINE) -> np.ndarray:
        starts = timeline.starts([steps for _, steps in self.p.parts])
        part = np.searchsorted(starts, cycles, side="right") - 1
        return np.eye(len(self.p.tasks))[self._order[part]]


class PieceWiseTasks(TaskSchedule):
    """One schedule after the other, each for a number of steps; the last one never ends.

    A schedule counts steps from the end of the schedule before.

    >>> parts = ((ConstantTasks, 2), (RoundRobinTasks, 2))
    >>> schedule = PieceWiseTasks.params(parts=parts, tasks=("lm", "mt")).build()
    >>> schedule.probabilities(np.array([1, 2, 3]))[:, 0]
    array([0.5, 1. , 0. ])
    """

    parts: tuple[tuple[TaskSchedule, int], ...]  # each schedule, and how many steps it lasts

    def check(self) -> None:
        _check_parts(self.p.parts)

    def setup(self) -> None:
        self.schedules = [schedule.build(tasks=self.p.tasks) for schedule, _ in self.p.parts]

    def metrics(self) -> list[str]:
        return [name for schedule in self.schedules for name in schedule.metrics()]

    def probabilities(self, cycles: np.ndarray, timeline: Timeline = NO_TIMELINE) -> np.ndarray:
        lengths = [steps for _, steps in self.p.parts]
        starts = timeline.starts(lengths)
        part = np.searchsorted(starts, cycles, side="right") - 1
        found = np.empty((len(cycles), len(self.p.tasks)))
        begin = 0  # the step from which the part counts
        for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            here = part == i
            own = _shift(timeline, begin, timeline.first_step + start * timeline.cycle_steps)
            found[here] = self.schedules[i].probabilities(cycles[here] - start, own)
            begin += length
        return found


class _AdaptiveTasks(TaskSchedule, interface=True):
    """Probabilities by each task's latest metric, relative to the value that is expected of it.

    A metric that was not evaluated yet counts as 0. Larger metrics are better, such as BLEU or an
    accuracy. It is for training with an evaluation input per task.
    """

    task_metrics: dict[str, str]  # task -> "input/metric", such as "dev/accuracy"
    expected: dict[str, float]  # task -> the metric at which the task counts as learned
    epsilon: float = 0.05  # keeps the probability of a task that is learned above 0
    alpha: float = 1.0  # power of the ratio of metric and expected value

    def check(self) -> None:
        ranges.check_positive(self.p, "epsilon", "alpha")

    def setup(self) -> None:
        metrics = self.p.task_metrics
        self._check_tasks("task_metrics", metrics)
        if lacking := [name for name in self.p.tasks if name not in metrics]:
            raise ParamError(f"task_metrics has no {lacking[0]!r}: give a metric for each task")
        self._expected = self._task_numbers("expected")
        if (self._expected == 0).any():
            raise ParamError(f"expected={dict(self.p.expected)}: each number is above 0")

    def metrics(self) -> list[str]:
        return [self.p.task_metrics[name] for name in self.p.tasks]

    def probabilities(self, cycles: np.ndarray, timeline: Timeline = NO_TIMELINE) -> np.ndarray:
        latest = np.zeros(len(self.p.tasks))
        values = [latest]
        for evaluated in timeline.evaluations:
            found = [evaluated.metrics.get(name) for name in self.metrics()]
            new = [old if f is None else f for f, old in zip(found, latest.tolist(), strict=True)]
            values.append(latest := np.array(new, np.float64))
        steps = [evaluated.step for evaluated in timeline.evaluations]
        last = np.searchsorted(steps, timeline.steps(cycles), side="right")
        ratios = np.clip(np.array(values)[last] / self._expected, 0.0, 1.0)
        scores = self._scores(ratios**self.p.alpha)
        return scores / scores.sum(axis=1, keepdims=True)

    def _scores(self, ratios: np.ndarray) -> np.ndarray:
        """Returns positive scores, float64 [N, K], of ratios from 0 to 1, float64 [N, K]."""
        raise NotImplementedError


class SimpleAdaptiveTasks(_AdaptiveTasks):
    """Scores 1 + epsilon - min(1, metric / expected) ** alpha (Jean et al. 2019, for two tasks).

    >>> metrics, expected = {"lm": "a/bleu", "mt": "b/bleu"}, {"lm": 1.0, "mt": 1.0}
    >>> schedule = SimpleAdaptiveTasks.params(
    ...     task_metrics=metrics, expected=expected, tasks=("lm", "mt")
    ... ).build()
    >>> past = Timeline(evaluations=(Evaluated(10, {"a/bleu": 0.3, "b/bleu": 0.9}),))
    >>> schedule.probabilities(np.array([9, 10]), past)[:, 0].round(4)
    array([0.5   , 0.8333])
    """

    def _scores(self, ratios: np.ndarray) -> np.ndarray:
        return 1.0 + self.p.epsilon - ratios


class InverseRatioAdaptiveTasks(_AdaptiveTasks):
    """Scores 1 / (min(1, metric / expected) ** alpha + epsilon) (Jean et al. 2019).

    >>> metrics, expected = {"lm": "a/bleu", "mt": "b/bleu"}, {"lm": 1.0, "mt": 1.0}
    >>> schedule = InverseRatioAdaptiveTasks.params(
    ...     task_metrics=metrics, expected=expected, tasks=("lm", "mt")
    ... ).build()
    >>> past = Timeline(evaluations=(Evaluated(10, {"a/bleu": 0.3, "b/bleu": 0.9}),))
    >>> schedule.probabilities(np.array([9, 10]), past)[:, 0].round(4)
    array([0.5   , 0.7308])
    """

    def _scores(self, ratios: np.ndarray) -> np.ndarray:
        return 1.0 / (ratios + self.p.epsilon)


def _check_parts(parts: Sequence[tuple[Any, int]]) -> None:
    if not parts:
        raise ParamError("parts is empty: give at least one")
    for i, (_, steps) in enumerate(parts):
        if steps < 1:
            raise ParamError(f"parts[{i}] has {steps} steps: a part needs at least one")


def _shift(timeline: Timeline, begin: int, first_step: int) -> Timeline:
    """Returns a timeline whose step 0 is step `begin`, and whose cycle 0 is at `first_step`."""
    moved = (one._replace(step=one.step - begin) for one in timeline.evaluations)
    return Timeline(timeline.cycle_steps, first_step - begin, tuple(moved))
