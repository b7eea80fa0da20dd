"""Schedules of tasks have the probabilities of Lingvo's formulas, and of Lingvo's rules by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.task_schedule import (
    ConstantTasks,
    Evaluated,
    ExponentialTasks,
    InverseRatioAdaptiveTasks,
    PieceWiseTasks,
    RoundRobinTasks,
    SequentialTasks,
    SigmoidTasks,
    SimpleAdaptiveTasks,
    Timeline,
)

TASKS = ("a", "b")
ONE, OTHER = {"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0}
MOST, HALF = {"a": 0.8, "b": 0.2}, {"a": 0.5, "b": 0.5}
STEPS = np.array([0, 50, 100, 1000])
METRICS = {"task_metrics": {"a": "x/bleu", "b": "y/bleu"}, "expected": {"a": 1.0, "b": 1.0}}


@pytest.mark.parametrize(
    ("schedule", "start", "end", "wanted"),
    [
        (ExponentialTasks, ONE, OTHER, [1, 0.606530660, 0.367879441, 0.0000454]),
        (SigmoidTasks, ONE, OTHER, [1, 0.755081338, 0.537882843, 0.000090796]),
        (ExponentialTasks, MOST, HALF, [0.8, 0.681959198, 0.610363832, 0.500013620]),
        (SigmoidTasks, MOST, HALF, [0.8, 0.726524401, 0.661364853, 0.500027239]),
    ],
)
def test_shifted_exponentials_have_the_values_of_the_formulas(schedule, start, end, wanted):
    built = schedule.params(start=start, end=end, alpha=0.01, tasks=TASKS).build()
    found = built.probabilities(STEPS)
    np.testing.assert_allclose(found[:, 0], wanted, atol=6e-10)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-15)


@pytest.mark.parametrize(
    ("schedule", "alpha", "wanted"),
    [
        (SimpleAdaptiveTasks, 1.0, [0.833333, 0.166667]),
        (SimpleAdaptiveTasks, 2.0, [0.8, 0.2]),
        (InverseRatioAdaptiveTasks, 1.0, [0.730769, 0.269231]),
        (InverseRatioAdaptiveTasks, 2.0, [0.86, 0.14]),
    ],
)
def test_adaptive_schedules_have_the_values_of_the_formulas(schedule, alpha, wanted):
    past = Timeline(evaluations=(Evaluated(7, {"x/bleu": 0.3, "y/bleu": 0.9}),))
    built = schedule.params(**METRICS, alpha=alpha, tasks=TASKS).build()
    before, after = built.probabilities(np.array([6, 7]), past)
    np.testing.assert_allclose(before, [0.5, 0.5])  # a metric without a value counts as 0
    np.testing.assert_allclose(after, wanted, atol=5e-7)


def test_an_adaptive_schedule_uses_the_latest_value_of_each_metric():
    past = Timeline(
        cycle_steps=10,
        evaluations=(
            Evaluated(20, {"x/bleu": 0.1, "y/bleu": 0.9}),
            Evaluated(40, {"x/bleu": 0.3}),
        ),
    )
    built = SimpleAdaptiveTasks.params(**METRICS, tasks=TASKS).build()
    found = built.probabilities(np.arange(6), past)[:, 0]
    np.testing.assert_allclose(found[2:4], 0.95 / (0.95 + 0.15))
    np.testing.assert_allclose(found[4:], 0.833333, atol=5e-7)


def test_a_metric_above_the_expected_value_counts_as_the_expected_value():
    past = Timeline(evaluations=(Evaluated(0, {"x/bleu": 7.0, "y/bleu": 1.0}),))
    built = InverseRatioAdaptiveTasks.params(**METRICS, tasks=TASKS).build()
    np.testing.assert_allclose(built.probabilities(np.array([0]), past), [[0.5, 0.5]])


def slow_sequence(lengths: Sequence[int], cycle_steps: int, num_cycles: int) -> list[int]:
    """Returns the part of each cycle, by Lingvo's rule: a call moves on by at most one part."""
    ends, part, parts = np.cumsum(lengths), 0, []
    for cycle in range(num_cycles):
        if cycle * cycle_steps >= ends[part] and part < len(lengths) - 1:
            part += 1
        parts.append(part)
    return parts


@pytest.mark.parametrize("cycle_steps", [1, 3, 20])
@pytest.mark.parametrize("lengths", [(5, 5, 1), (1, 2, 3), (10, 1, 30, 4)])
def test_sequential_tasks_follow_the_rule_of_one_part_per_call(lengths, cycle_steps):
    names = tuple("abcd"[: len(lengths)])
    parts = tuple(zip(names, lengths, strict=True))
    built = SequentialTasks.params(parts=parts, tasks=names).build()
    found = built.probabilities(np.arange(60), Timeline(cycle_steps))
    assert found.argmax(axis=1).tolist() == slow_sequence(lengths, cycle_steps, 60)
    assert set(found.ravel()) == {0.0, 1.0}


@pytest.mark.parametrize("cycle_steps", [1, 3])
def test_pieces_count_steps_from_the_end_of_the_piece_before(cycle_steps):
    inner = ExponentialTasks.params(start=ONE, end=OTHER, alpha=0.1)
    adaptive = SimpleAdaptiveTasks.params(**METRICS)
    parts = ((RoundRobinTasks, 7), (inner, 11), (adaptive, 1))
    built = PieceWiseTasks.params(parts=parts, tasks=TASKS).build()
    past = (Evaluated(30, {"x/bleu": 0.3, "y/bleu": 0.9}),)
    found = built.probabilities(np.arange(20), Timeline(cycle_steps, evaluations=past))[:, 0]
    own, begins = slow_sequence([7, 11, 1], cycle_steps, 20), [0, 7, 18]
    for cycle, part in enumerate(own):
        step = cycle * cycle_steps - begins[part]
        wanted = (cycle % 2 == 0, np.exp(-0.1 * step), 0.5 if step + 18 < 30 else 0.75 / 0.9)
        assert found[cycle] == pytest.approx(float(wanted[part]))
    assert built.metrics() == ["x/bleu", "y/bleu"]


def test_tasks_take_turns_in_the_order_that_is_given():
    built = RoundRobinTasks.params(order=("b", "a", "a"), tasks=TASKS).build()
    assert built.probabilities(np.arange(6)).argmax(axis=1).tolist() == [1, 0, 0, 1, 0, 0]
    assert ConstantTasks.params(tasks=TASKS).build().probabilities(np.array([3])).tolist() == [
        [0.5, 0.5]
    ]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (ConstantTasks.params(weights={"a": 1.0, "c": 1.0}), "names 'c', which is no task"),
        (ConstantTasks.params(weights={"a": 1.0}), "has no 'b'"),
        (ConstantTasks.params(weights={"a": 0.0, "b": 0.0}), "one is above 0"),
        (ConstantTasks.params(weights={"a": -1.0, "b": 2.0}), "at least 0"),
        (ExponentialTasks.params(start=ONE, end=OTHER, alpha=0.0), "alpha=0.0 is not positive"),
        (RoundRobinTasks.params(order=("c",)), "order names 'c'"),
        (SequentialTasks.params(parts=()), "parts is empty"),
        (SequentialTasks.params(parts=(("a", 0),)), r"parts\[0\] has 0 steps"),
        (PieceWiseTasks.params(parts=()), "parts is empty"),
        (SimpleAdaptiveTasks.params(**METRICS, epsilon=0.0), "epsilon=0.0 is not positive"),
        (
            SimpleAdaptiveTasks.params(task_metrics={"a": "x/y"}, expected=HALF),
            "task_metrics has no 'b'",
        ),
        (
            SimpleAdaptiveTasks.params(task_metrics=METRICS["task_metrics"], expected=ONE),
            "each number is above 0",
        ),
    ],
)
def test_settings_of_no_use_are_refused(schedule, message):
    with pytest.raises(ParamError, match=message):
        schedule.build(tasks=TASKS)
