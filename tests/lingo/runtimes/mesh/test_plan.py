"""Predictions of plans against the programs that XLA makes for eight devices."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lingo.config import registry
from lingo.contract import Experiment, build_experiment
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Estimator
from lingo.inspection.plan.hardware import HARDWARE
from lingo.inspection.plan.verification import compare, text
from lingo.inspection.plan.workload import workload
from lingo.mesh.topology import topology


@pytest.mark.parametrize(
    ("experiment", "candidate", "exchanged"),
    [
        ("tiny", Candidate(topology({"data": 8})), 0.05),
        ("tiny", Candidate(topology({"data": 2, "model": 4})), 0.01),
        ("tiny", Candidate(topology({"data": 2, "model": 4}), "2d_attempt_2"), 0.05),
        ("tiny", Candidate(topology({"data": 2, "model": 4}), "2d_finalized"), 0.05),
        ("tiny", Candidate(topology({"data": 8}), shard_update=True), 0.05),
        ("tiny", Candidate(topology({"data": 8}), shard_update=True, shard_weights=True), 0.05),
        ("tiny", Candidate(topology({"data": 2, "sequence": 2, "model": 2})), 0.1),
        ("tiny", Candidate(topology({"data": 2, "sequence": 4})), 0.25),
        ("tiny", Candidate(topology({"stage": 4, "data": 2}), micro_batches=8), 0.1),
        ("tiny_moe", Candidate(topology({"data": 2, "expert": 4})), 0.05),
        ("tiny_moe", Candidate(topology({"expert": 4, "model": 2})), 0.01),
    ],
)
def test_a_prediction_is_close_to_the_compiled_program(
    experiment: str, candidate: Candidate, exchanged: float
) -> None:
    def build(more: Sequence[str]) -> Experiment:
        batch = "train_input.batch_size=16"
        return build_experiment(registry.get(f"lm.source.{experiment}", [batch, *more]))

    found = workload(build(()))
    estimate = Estimator(found, HARDWARE["h100"], build).estimate(candidate)
    compared = compare(estimate, found, build(candidate.settings(found, {})))
    differences = {one.name: abs(one.difference) for one in compared}
    assert differences["bytes of arguments"] < 1e-3
    assert differences["FLOPs of products"] < 0.1
    assert differences["bytes exchanged"] < exchanged
    assert differences["bytes in all"] < 0.3
    lines = text(compared).splitlines()
    assert len(lines) == 1 + len(compared)
    assert lines[0].split()[-3:] == ["predicted", "compiled", "difference"]
