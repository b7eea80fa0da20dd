"""Batches of several shapes: training and evaluation have every row, and count their work."""

import json

import numpy as np
import pytest

from lingo.data.bucketed_input import BucketedInput
from lingo.data.document_input import TextInput
from lingo.learner.state import initial_state
from lingo.runtimes.local import Local
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation.evaluate import evaluate
from lingo.trainer.request import Request
from lingo.trainer.run import train
from lingo.trainer.throughput import Work

BOUNDARIES = [48, 64, 80]
NUM_STEPS = 8  # two passes and a bit


@pytest.fixture
def params(experiment, text):
    made = experiment(text, max_steps=NUM_STEPS)
    source = made.train_input.source
    rows = BucketedInput.params(source=source, batch_size=1, boundaries=BOUNDARIES)
    return made.set(train_input=rows, eval_inputs={}, steps_per_loop=4)


def test_a_run_trains_on_every_row(params, rows, tmp_path):
    directory = tmp_path / "run"
    train(Request(params, "{}", "", audit=True), RunDirectory(directory))
    lines = (directory / "audit.jsonl").read_text().splitlines()
    examples = [number for line in lines for number in json.loads(line)["examples"]]
    input = params.train_input.build()
    assert len({input.shape_id(step) for step in range(NUM_STEPS)}) == len(BOUNDARIES)
    assert examples == list(range(input.examples_before(NUM_STEPS)))
    losses = [row["loss/total"] for row in rows(directory) if "loss/total" in row]
    assert len(losses) == NUM_STEPS
    assert min(losses) > 0


@pytest.mark.parametrize("shuffle", [True, False])
def test_metrics_are_those_of_the_same_documents_in_rows_of_one_length(params, shuffle):
    experiment = params.build()
    program = Local.params().build().start(experiment.learner, initial_state(experiment.learner))
    fields = {"source": params.train_input.source, "repeat": False}
    bucketed = BucketedInput.params(**fields, batch_size=2, boundaries=BOUNDARIES, shuffle=shuffle)
    plain = BucketedInput.params(**fields, batch_size=1, boundaries=BOUNDARIES[-1:])
    found, wanted = (evaluate(experiment.task, program, p.build()) for p in (bucketed, plain))
    assert found == pytest.approx(wanted, rel=1e-6)  # matrix products of other sizes


def test_work_is_that_of_the_shapes_that_came(params):
    experiment = params.build()
    input, task, work = experiment.train_input, experiment.task, Work(experiment)
    for step in range(NUM_STEPS):
        batch = input.batch(step)
        counted = work.count(step, {name: value[np.newaxis] for name, value in batch.items()})
        assert counted == {
            "examples": batch["weights"].sum(),
            "tokens": np.count_nonzero(batch["segments"]),
            "flops": 3 * task.flops(batch["tokens"].shape),
        }


def test_rows_of_other_processes_count_as_those_of_this_one(params, text):
    source = params.train_input.source
    experiment = params.set(
        train_input=TextInput.params(source=source, batch_size=4, length=8)
    ).build()
    batch = experiment.train_input.batch(0)
    whole, half = (
        Work(experiment).count(0, {k: np.stack(2 * [v[:n]]) for k, v in batch.items()})
        for n in (4, 2)
    )
    assert whole == half
    assert whole["flops"] == 2 * experiment.step_flops()
