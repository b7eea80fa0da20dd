"""Devices add up metrics over many batches, and the host reads the sums once."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from tests.lingo.runtimes.child import printed
from tests.lingo.trainer.evaluation.many_batches import BATCH, LARGE, SIZE, K, examples

PROGRAM = pathlib.Path(__file__).with_name("many_batches.py")
NUM_BATCHES = -(-SIZE // BATCH)


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return json.loads(printed(str(PROGRAM)).splitlines()[-1])


def test_sums_over_64_batches_are_those_of_float64_and_are_read_once(found) -> None:
    data = {name: array.astype(np.float64) for name, array in examples().items()}
    confusion = np.zeros([K, K])
    np.add.at(confusion, (data["labels"].astype(int), data["predictions"].astype(int)), 1)
    assert [*found] == ["local", "replicated", "mesh"]
    for name, one in found.items():
        sums = one["sums"]
        assert sums["x"]["sum"] == pytest.approx(data["x"].sum(), rel=1e-6), name
        assert sums["x"]["weight"] == SIZE, name
        # A sum in float32 over batches would lose all but the first.
        assert sums["counts"]["sum"] == data["counts"].sum() == LARGE + NUM_BATCHES - 1, name
        np.testing.assert_array_equal(sums["classes"]["confusion"], confusion)
        num_tensors = 5  # two of each mean, and the matrix
        assert one["reads"] == [0] * NUM_BATCHES + [num_tensors], name
