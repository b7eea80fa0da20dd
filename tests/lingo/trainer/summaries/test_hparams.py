"""Hyperparameters: what stands in a run's row, and as which type."""

import pytest
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata

from lingo.config.serial import Origin
from lingo.config.text import Line
from lingo.trainer.summaries.hparams import end_summary, hparams, start_summary

LINES = [
    Line("max_steps", "20"),
    Line("optimizer", "Adam"),
    Line("optimizer.learning_rate", "0.001"),
    Line("optimizer.max_grad_norm", "None"),
    Line("seed", "0", "default"),
    Line("task.model.name", "'a'"),
]


def row(*overrides, **arguments):
    return hparams(LINES, Origin("", "", "", arguments, overrides), total_parameters=7)


def test_every_row_has_the_headlines_that_the_experiment_has():
    assert row() == {
        "max_steps": 20,
        "learning_rate": 0.001,
        "seed": 0,
        "weights": 7,
    }


def test_a_row_names_the_experiment_by_name_or_file():
    named = Origin("lm.source.tiny", "source.py", "tiny")
    assert hparams(LINES, named, total_parameters=7)["experiment"] == "lm.source.tiny"
    filed = Origin("", "mine.py", "mine")
    assert hparams(LINES, filed, total_parameters=7)["experiment"] == "mine.py:mine"


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("optimizer.learning_rate=1e-3", "learning_rate", 0.001),
        ("optimizer=Adam(beta=0.5)", "optimizer", "Adam"),
        ("optimizer.max_grad_norm=None", "optimizer.max_grad_norm", "None"),
        ("FeedForward.dropout_rate=.5", "FeedForward.dropout_rate", 0.5),
        ("FeedForward=MoE(expert=_, num_experts=8)", "FeedForward", "MoE(expert=_, num_experts=8)"),
        ("Stack.sizes=[1, 2]", "Stack.sizes", "[1, 2]"),
    ],
)
def test_an_override_stands_under_what_was_typed_with_its_type(override, key, value):
    found = row(override)[key]
    assert found == value
    assert type(found) is type(value)


def test_the_last_of_several_overrides_counts():
    assert row("A.b=1", "A.b=2")["A.b"] == 2


def test_arguments_of_the_experiment_are_keys():
    found = row("exp.width=8", width=8, sizes=(1, 2), name=None, max_steps=9)
    assert (found["width"], found["sizes"], found["name"]) == (8, "(1, 2)", "None")
    assert (found["max_steps"], found["exp.max_steps"]) == (20, 9)
    assert "exp.width" not in found


def test_two_runs_with_the_same_values_are_two_rows():
    (value,) = Summary.FromString(start_summary({"a": 1})).value
    start = metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
    assert start.group_name == ""  # TensorBoard then takes the name of the folder


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("done", "SUCCESS"),
        ("done (early)", "SUCCESS"),
        ("failed", "FAILURE"),
        ("stopped", "UNKNOWN"),
    ],
)
def test_the_end_says_how(state, status):
    (value,) = Summary.FromString(end_summary(state)).value
    end = metadata.parse_session_end_info_plugin_data(value.metadata.plugin_data.content)
    assert api_pb2.Status.Name(end.status) == f"STATUS_{status}"
