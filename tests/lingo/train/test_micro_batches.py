"""Which rows a step can cut: a multiple of its parts, and of the micro-batches in each."""

from __future__ import annotations

import pytest

import lingo
from lingo.train.micro_batches import pipelines, row_multiple

PAIRS = "seq2seq.source.signatures"


@pytest.mark.parametrize(
    ("overrides", "multiple"),
    [
        ((), 1),
        (("accumulation_steps=2",), 2),
        (("Stack=Pipeline(num_stages=2, num_micro_batches=4)",), 4),
        (("accumulation_steps=2", "Stack=Pipeline(num_stages=2, num_micro_batches=4)"), 8),
        (
            (
                "Stack=Pipeline(num_stages=2, num_micro_batches=4)",
                "task.model.decoder.num_micro_batches=6",
            ),
            12,
        ),
    ],
)
def test_rows_are_cut_into_parts_and_into_the_micro_batches_of_every_pipeline(
    overrides: tuple[str, ...], multiple: int
) -> None:
    learner = lingo.get(PAIRS, *overrides).build().learner
    assert row_multiple(learner) == multiple


def test_a_chain_in_stages_is_a_pipeline() -> None:
    chain = "Chain=PipelinedChain(num_stages=2, num_micro_batches=4)"
    experiment = lingo.get("image.amoebanet.digits", chain).build()
    assert [type(layer).__name__ for layer in pipelines(experiment.task)] == ["PipelinedChain"]
    assert row_multiple(experiment.learner) == 4
