"""The contract holds for lingo's own experiments: one of each kind, small."""

from __future__ import annotations

import pytest

import lingo

TEXT = ["exp.model_dim=16", "TextInput.length=16", "InstalledSource.package=keras"]
PAIRS = ["exp.model_dim=16", "PairInput.source_length=24", "PairInput.target_length=24"]
SMALL = ["LanguageModel.dim=16", "Stack.num_layers=2", "FeedForward.hidden_dim=16"]
PIPELINE = "Stack=Pipeline(num_stages=2, num_micro_batches=2)"
KINDS = {
    "language model": ["lm.source.tiny", "exp.num_layers=2", *TEXT],
    "mixture of experts": ["lm.source.tiny_moe", "exp.num_experts=4", *SMALL, *TEXT[1:]],
    "pipeline": ["lm.source.tiny", "exp.num_layers=2", *TEXT, PIPELINE],
    "sequence to sequence": ["seq2seq.source.signatures", "exp.num_layers=2", *PAIRS],
    "images": ["image.lenet.digits"],
    "cells of images": ["image.amoebanet.digits", "exp.num_filters=4"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_experiment_of_each_kind_keeps_the_contract(kind):
    name, *overrides = KINDS[kind]
    (result,) = lingo.check(*overrides, names=[name], contract=True)
    assert [str(claim) for claim in result.claims if claim.outcome == "FAILED"] == []
    assert result.error is None
    passed = {claim.subject for claim in result.claims if claim.outcome == "pass"}
    assert len(passed) > 5
