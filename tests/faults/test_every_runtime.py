"""The real commands on every runtime: the same losses, and checkpoints that all can read."""

from __future__ import annotations

import pathlib

import pytest

from tools.bench.runtimes import ROWS, compare
from tools.harness import Report


@pytest.mark.faults
def test_every_runtime_computes_the_same_and_reads_all_others(tmp_path: pathlib.Path) -> None:
    report = Report()
    compare(ROWS, tmp_path, report)
    assert report.exit_code() == 0
