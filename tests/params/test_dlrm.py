"""MLPerf's DLRM: its size by a formula of its own, its schedule, and where its tables lie."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

import lingo
from lingo.cli.main import main
from lingo.runtimes.layout import layout
from params.click.dlrm import CRITEO

D = 128
TOTAL = 24_036_595_969


def network(*dims: int) -> int:
    """Returns the number of weights of products with biases."""
    return sum(m * n + n for m, n in pairwise(dims))


def test_it_has_the_weights_of_the_formula():
    task = lingo.get("click.dlrm.dlrm").build().task
    assert len(CRITEO) == 26
    num_pairs = 27 * 26 // 2
    others = network(13, 512, 256, D) + network(D + num_pairs, 1024, 1024, 512, 256, 1)
    sizes = {path: spec.size for path, spec in task.weights().items()}
    tables = sum(size for path, size in sizes.items() if "/tables/" in path)
    assert tables == D * sum(CRITEO) == TOTAL - others
    assert sum(sizes.values()) == TOTAL
    assert others == 2_368_897


def test_packed_tables_of_eight_groups_need_the_rows_of_the_largest_table_in_each():
    params = lingo.get("click.dlrm.dlrm", "EmbeddingTables.num_groups=8")
    params.task.model.tables.whole_below = 0
    sizes = {path: spec.shape for path, spec in params.build().task.weights().items()}
    assert sizes["model/tables/tables"] == (8 * max(CRITEO), D)


def test_its_rate_is_that_of_mlperf():
    optimizer = lingo.get("click.dlrm.dlrm").build().optimizer
    steps = np.array([0, 1375, 2750, 49_315, 49_315 + 27_772 // 2, 49_315 + 27_772])
    rates = [float(optimizer.rates(step)["learning_rate"]) for step in steps]
    peak = 0.887 * 55_296 / 2_048
    expected = [0, peak / 2, peak, peak, peak / 4, 0]
    np.testing.assert_allclose(rates, expected, rtol=1e-4, atol=1e-6)


def test_large_tables_are_cut_over_all_devices_and_small_ones_are_whole():
    experiment = lingo.get("click.dlrm.dlrm").build()
    mesh, rules = experiment.runtime.topology(), experiment.runtime.axis_rules()
    rest = layout(experiment.learner, mesh, rules).rest
    cut = {i for i in range(26) if str(rest[f"model/tables/table_{i}"]) == "[data, -]"}
    assert cut == {i for i, size in enumerate(CRITEO) if size >= 100_000}
    assert len(cut) == 8
    assert all(str(split) == "[-, -]" for k, split in rest.items() if k.endswith("/w"))


def test_it_is_shown_without_memory_for_its_weights(capsys: pytest.CaptureFixture[str]):
    begin = time.process_time()
    assert main(["show", "--exp=click.dlrm.dlrm", "--weights"]) == 0
    assert time.process_time() - begin < 1
    assert f"{TOTAL:,}" in capsys.readouterr().out


def test_it_traces_without_memory_for_its_weights():
    assert main(["check", "--trace", "--exp=click.dlrm.dlrm"]) == 0


def test_the_small_one_is_as_large_as_it_says():
    task = lingo.get("click.dlrm.clicks").build().task
    sizes = [min(size, 50) for size in CRITEO]
    expected = 16 * sum(sizes) + network(13, 64, 32, 16) + network(16 + 351, 64, 32, 1)
    assert sum(spec.size for spec in task.weights().values()) == expected == 47_041
