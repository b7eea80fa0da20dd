"""A MultiTaskInput draws tasks by the schedule, and reads each task's own input in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.document_input import TextInput
from lingo.data.input import Input
from lingo.data.mixture import Mixture
from lingo.data.multi_task_input import MultiTaskInput, TaskInput
from lingo.data.prefetch import Prefetch
from lingo.data.record_source import TextFiles
from lingo.data.task_schedule import (
    ConstantTasks,
    Evaluated,
    ExponentialTasks,
    RoundRobinTasks,
    SimpleAdaptiveTasks,
)
from lingo.decode.text import prompt_batch
from tests.lingo.data.test_mixture import Numbers

PARTS = {"a": Numbers.params(part=0, size=7, batch_size=2), "b": Numbers.params(part=1, size=5)}


def tasks(**fields: Any) -> Any:
    return MultiTaskInput.params(**{"inputs": PARTS, "batch_size": 3} | fields).build()


def task_names(data: Any, num: int) -> list[str]:
    return [list(PARTS)[data.locate_step(step).task] for step in range(num)]


@pytest.mark.parametrize("cycle_steps", [1, 4])
def test_each_task_gets_the_batches_of_its_own_input_without_gaps(cycle_steps):
    data = tasks(cycle_steps=cycle_steps)
    alone = {"a": PARTS["a"].build(), "b": PARTS["b"].build(batch_size=3)}
    done = dict.fromkeys(PARTS, 0)
    for step, name in enumerate(task_names(data, 60)):
        assert data.task_steps(step) == done
        batch, wanted = data.batch(step), alone[name].batch(done[name])
        assert batch.pop(f"task__{name}").tolist() == [0] * len(batch["rows"])
        ids = batch.pop("example_id")
        np.testing.assert_array_equal(ids // 2, wanted.pop("example_id"))
        np.testing.assert_array_equal(ids % 2, list(PARTS).index(name))
        np.testing.assert_array_equal(data.example_ids(step), ids)
        assert data.num_rows(step) == len(ids)
        for key, array in wanted.items():
            np.testing.assert_array_equal(batch[key], array)
        done[name] += 1
    assert data.examples_before(60) == 2 * done["a"] + 3 * done["b"]
    assert data.epochs(60) == pytest.approx(2 * done["a"] / 7 + 3 * done["b"] / 5)
    assert min(done.values()) > 0
    if cycle_steps == 4:
        names = task_names(data, 60)
        assert all(len({*names[i : i + 4]}) == 1 for i in range(0, 60, 4))


def test_sampled_counts_are_within_three_deviations_of_their_expectations():
    schedule = ExponentialTasks.params(
        start={"a": 0.9, "b": 0.1}, end={"a": 0.2, "b": 0.8}, alpha=1e-4
    )
    data, num = tasks(schedule=schedule), 40_000
    chosen = np.array([data.locate_step(step).task for step in range(num)])
    shares = data.schedule.probabilities(np.arange(num))[:, 0]
    for span in (slice(0, 4000), slice(10_000, 20_000), slice(0, num)):
        expected, variance = shares[span].sum(), (shares[span] * (1 - shares[span])).sum()
        assert abs((chosen[span] == 0).sum() - expected) < 3 * np.sqrt(variance)
    assert data.task_steps(num)["a"] == (chosen == 0).sum()


def test_a_step_needs_no_earlier_step():
    late = tasks(seed=3)
    assert late.locate_step(70_001) == tasks(seed=3).locate_step(70_001)
    assert task_names(tasks(seed=3), 200) != task_names(tasks(seed=4), 200)
    whole = tasks(seed=3)
    chosen = [whole.locate_step(step) for step in range(70_002)]
    assert chosen[-1] == late.locate_step(70_001)
    assert chosen[-1].step == sum(one.task == chosen[-1].task for one in chosen[:-1])


def test_loops_of_steps_end_where_the_task_changes():
    data = tasks(schedule=RoundRobinTasks, cycle_steps=3)
    with Prefetch(data, spans=[range(8)]) as items:
        spans = [(steps, "task__a" in batches) for steps, batches in items]
    assert spans == [(range(3), True), (range(3, 6), False), (range(6, 8), True)]


ADAPTIVE = SimpleAdaptiveTasks.params(
    task_metrics={"a": "x/accuracy", "b": "y/accuracy"}, expected={"a": 1.0, "b": 1.0}
)


def test_evaluations_change_later_steps_alone():
    data = tasks(schedule=ADAPTIVE)
    before = [data.locate_step(step) for step in range(3000)]
    assert data.followed_metrics() == ["x/accuracy", "y/accuracy"]
    data.follow((Evaluated(1000, {"x/accuracy": 1.0, "y/accuracy": 0.0}),))
    after = [data.locate_step(step) for step in range(3000)]
    assert after[:1000] == before[:1000]
    share = np.mean([one.task == 0 for one in after[1000:]])
    assert share == pytest.approx(0.05 / 1.1, abs=3 * np.sqrt(0.05 / 1.1 / 2000))
    again = tasks(schedule=ADAPTIVE)
    again.follow((Evaluated(1000, {"x/accuracy": 1.0, "y/accuracy": 0.0}),))
    assert [again.locate_step(step) for step in range(3000)] == after
    numbers = [one.step for one in after if one.task == 1]
    assert numbers == list(range(len(numbers)))


def test_origins_name_the_task():
    data = tasks(schedule=RoundRobinTasks)
    assert data.origins(data.example_ids(0)) == ["a/0:0", "a/0:1"]
    assert data.origins(data.example_ids(3)) == ["b/0:3", "b/0:4", "b/1:0"]


def test_an_evaluation_reads_the_input_of_one_task():
    heldout = Numbers.params(part=1, size=5)
    data = TaskInput.params(task="b", input=heldout, batch_size=2, repeat=False).build()
    alone = heldout.build(batch_size=2, repeat=False)
    assert data.num_batches() == alone.num_batches() == 3
    for step in range(3):
        batch, wanted = data.batch(step), alone.batch(step)
        data.check_batch(batch)
        assert batch.keys() - wanted.keys() == {"task__b"}
        assert data.specs().keys() == batch.keys()
    assert data.offers() == {"task_offers": {"b": alone.offers()}}


def test_a_mixture_may_be_the_input_of_a_task():
    mixed: Input = Mixture.params(inputs=PARTS | {"a": Numbers.params(part=0)}, batch_size=4)
    data = tasks(inputs={"mixed": mixed, "b": PARTS["b"]}, schedule=RoundRobinTasks)
    assert data.batch(2)["example_id"].tolist() == [8, 10, 12, 14]


def test_prompts_and_pairs_name_their_task():
    texts = TextInput.params(source=TextFiles.params(pattern="*"), length=8)
    data = tasks(inputs={"numbers": PARTS["a"], "texts": texts, "others": texts.copy()})
    for built, task in (
        (data, "texts"),
        (tasks(inputs=data.p.inputs, prompt_task="others"), "others"),
        (TaskInput.params(task="texts", input=texts, batch_size=2).build(), "texts"),
    ):
        prompt = built.prompt("ab")
        assert prompt.task == task
        batch = prompt_batch([prompt, prompt], rows=[0, 1], end_id=1)
        assert batch[f"task__{task}"].tolist() == [0, 0]
    assert data.tokenizer is data.inputs["texts"].tokenizer


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": {}}, "inputs is empty"),
        ({"cycle_steps": 0}, "cycle_steps=0 is not positive"),
        ({"repeat": False}, "never ends"),
        ({"prompt_task": "c"}, "prompt_task='c' is not one of inputs: a, b"),
        ({"schedule": ConstantTasks.params(weights={"c": 1.0})}, "names 'c'"),
        ({"inputs": PARTS | {"a": Numbers.params(part=0, repeat=False)}}, "has repeat=False"),
    ],
)
def test_settings_of_no_use_are_refused(fields, message):
    with pytest.raises(ParamError, match=message):
        tasks(**fields)
    with pytest.raises(ParamError, match="max_batches must stay None"):
        TaskInput.params(task="a", input=PARTS["a"], repeat=False, max_batches=2).build()
    with pytest.raises(ParamError, match="no task has a tokenizer"):
        tasks().prompt("a")
