"""A run of a GAN shows samples, names its losses, and resumes between the generator's turns."""

import json
import pathlib

import numpy as np

import lingo
from lingo.config import registry
from tests.lingo.conftest import weights

SMALL = (
    *("train_input.batch_size=8", "eval_inputs['heldout'].batch_size=8"),
    *("eval_inputs['heldout'].max_batches=1", "summary.num_examples=8", "summary.every_steps=1"),
    *("Generator.num_filters=2", "Discriminator.num_filters=2", "evaluate.every_steps=6"),
)
WASSERSTEIN = "gan.digits_wasserstein"


def params(name: str, *overrides: str):
    return registry.get(name, [*SMALL, *overrides]).params


def rows(directory: pathlib.Path) -> list[dict[str, float]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "loss/total" in row]


def test_a_run_that_stops_between_the_turns_of_the_generator_ends_bit_by_bit_the_same(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lingo.train(params(WASSERSTEIN, "max_steps=6", "steps_per_loop=3"), whole)
    for last in (3, 6):
        lingo.train(params(WASSERSTEIN, f"max_steps={last}"), parts)
    expected, found = (weights(directory) for directory in (whole, parts))
    assert expected["state/phases/generator/updates"] == 2
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    term = "loss/generator/samples"
    reported = [{row["step"]: row.get(term) for row in rows(path)} for path in (whole, parts)]
    assert reported[0] == reported[1]
    assert [step for step, value in reported[0].items() if value is not None] == [1, 6]


def test_an_evaluation_has_samples_and_a_distance(tmp_path):
    outcome = lingo.train(params("gan.digits", "max_steps=6"), tmp_path / "run")
    metrics = outcome.evaluations["heldout"]
    assert metrics["eval/frechet"] > 0
    assert 0 <= metrics["eval/accuracy/data"] <= 1
    assert metrics["eval/loss/generator/samples"] > 0
    model = lingo.load(tmp_path / "run")
    made = model.predict(model.experiment.eval_inputs["heldout"])
    assert made["samples"].shape[1:] == (8, 8, 1)
