"""Steps that are given in epochs: counted against a loop over the examples."""

import math

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.contract import Evaluation
from lingo.data.epochs import Cadence, RunLength, check_unit
from lingo.data.example_input import IndexedInput
from lingo.data.multi_task_input import MultiTaskInput
from lingo.data.task_schedule import RoundRobinTasks


class Numbers(IndexedInput):
    """Examples that are their numbers."""

    size: int  # examples in the data

    def prepare(self, *, progress=None) -> None:
        pass

    def num_examples(self) -> int:
        return self.p.size

    def read_indices(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        return {"number": indices}

    def fingerprint(self):
        return {"size": self.p.size}


def numbers(size: int, batch_size: int) -> Numbers:
    return Numbers.params(size=size, batch_size=batch_size).build()


def times_read(data: Numbers, steps: int) -> np.ndarray:
    """How often each example was read in some steps."""
    read = [number for step in range(steps) for number in data.batch(step)["number"].tolist()]
    return np.bincount(np.array(read, np.int64), minlength=data.num_examples())


@pytest.mark.parametrize("size", [1, 7, 12, 100])
@pytest.mark.parametrize("batch_size", [1, 4, 12, 30])
def test_a_run_ends_when_every_example_was_read_as_often_as_wanted(size, batch_size):
    data = numbers(size, batch_size)
    for epochs in (0.25, 1, 3):
        steps = RunLength(data, None, epochs).steps
        assert steps == math.ceil(epochs * size / batch_size)
        if epochs >= 1:
            assert times_read(data, steps).min() >= epochs > times_read(data, steps - 1).min()


@pytest.mark.parametrize(("size", "batch_size", "every"), [(7, 3, 1.0), (12, 4, 2), (10, 4, 0.3)])
def test_evaluations_come_at_the_first_step_after_each_interval(size, batch_size, every):
    cadence = Cadence(numbers(size, batch_size), None, every)
    passed = [step * batch_size / size // every for step in range(41)]
    expected = [step for step in range(1, 41) if passed[step] > passed[step - 1]]
    assert [step for step in range(41) if cadence.is_due(step)] == expected
    for step in range(expected[-1]):
        assert cadence.next_step(step) == next(s for s in expected if s > step)


def test_a_large_run_is_counted_without_a_loop_over_its_steps():
    data = numbers(1_281_167, 256)
    assert RunLength(data, None, 90).steps == 450_411
    assert RunLength(data, 5, None).steps == 5


def test_more_steps_than_a_program_can_count_are_refused():
    with pytest.raises(ParamError, match=r"takes more than 2,147,483,647 steps"):
        _ = RunLength(numbers(10, 1), None, 1e12).steps


def test_steps_per_epoch_are_the_mean_of_all_tasks_whichever_is_first():
    inputs = {"small": Numbers.params(size=10), "large": Numbers.params(size=1000)}
    for order in (("small", "large"), ("large", "small")):
        schedule = RoundRobinTasks.params(order=order)
        data = MultiTaskInput.params(inputs=inputs, schedule=schedule, batch_size=10).build()
        length = RunLength(data, 200, None)
        assert length.steps_per_epoch == pytest.approx(200 / (100 + 1))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "evaluate.every_steps=500 and evaluate.every_epochs=1.0 exclude each other: set"),
        ({"every_steps": None, "every_epochs": None}, "are both None: set one of them"),
    ],
)
def test_a_length_has_one_unit(fields, text):
    p = Evaluation.params(**({"every_epochs": 1.0} | fields))
    with pytest.raises(ParamError, match=text):
        check_unit(p, "every_steps", "every_epochs", place="evaluate.")
