"""The real commands on every runtime: the same losses, and checkpoints that all can read."""

from __future__ import annotations

import pathlib

import pytest

from tools.bench.runtimes import ROWS, table
from tools.bounds import Bounds


@pytest.mark.faults
def test_every_runtime_computes_the_same_and_reads_all_others(tmp_path: pathlib.Path) -> None:
    bounds, lines = Bounds(), table(ROWS, tmp_path)
    for line in lines:
        line.hold(bounds, len(lines))
    assert bounds.exit_code() == 0
