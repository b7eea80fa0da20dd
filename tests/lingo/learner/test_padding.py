"""How far a batch is filled up: to parts and micro-batches; and where filling would count."""

import pytest

import lingo
from lingo.learner.padding import padding_changes_results, pipelines, row_multiple

PAIRS = "seq2seq.source.signatures"
FOUR = "Stack=Pipeline(num_stages=2, num_micro_batches=4)"


@pytest.mark.parametrize(
    ("overrides", "multiple"),
    [
        ((), 1),
        (("accumulation_steps=2",), 2),
        ((FOUR,), 4),
        (("accumulation_steps=2", FOUR), 8),
        ((FOUR, "task.model.decoder.num_micro_batches=6"), 12),
    ],
)
def test_rows_are_cut_into_parts_and_into_the_micro_batches_of_every_pipeline(overrides, multiple):
    learner = lingo.get(PAIRS, *overrides).build().learner
    assert row_multiple(learner) == multiple


def test_a_pipeline_of_groups_of_rows_is_not_filled_up():
    for size, multiple in ((None, 4), (64, 1)):
        experts = f"FeedForward=MoE(expert=_, num_experts=2, group_size={size})"
        learner = lingo.get(PAIRS, FOUR, experts).build().learner
        assert row_multiple(learner) == multiple


@pytest.mark.parametrize(
    ("override", "counted"),
    [
        ("max_steps=1", []),
        (FOUR, [6]),
        ("FeedForward=MoE(expert=_, num_experts=2, group_size=64)", [6, 8]),
    ],
)
def test_filling_counts_where_rows_are_cut_or_joined(override, counted):
    task = lingo.get(PAIRS, override).build().task
    assert [size for size in (6, 8) if padding_changes_results(task, size)] == counted


def test_filling_counts_in_statistics():
    assert padding_changes_results(lingo.get("image.amoebanet.digits").build().task, 8)


def test_a_chain_in_stages_is_a_pipeline():
    chain = "Chain=PipelinedChain(num_stages=2, num_micro_batches=4)"
    experiment = lingo.get("image.amoebanet.digits", chain).build()
    assert [type(layer).__name__ for layer in pipelines(experiment.task)] == ["PipelinedChain"]
    assert row_multiple(experiment.learner) == 4
