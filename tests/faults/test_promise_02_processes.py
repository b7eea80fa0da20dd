"""Promise 2: the real commands with several processes compute and save what one process does.

Of runtimes in one process, `tests/lingo/runtimes/test_same.py` claims the same.
"""

import pytest

from tools.bench.runtimes import ROWS, compare
from tools.harness import Report

SEVERAL = [row for row in ROWS if row.num_workers > 1]


@pytest.mark.faults
@pytest.mark.parametrize(
    "row", [*(pytest.param(row, marks=pytest.mark.grid) for row in SEVERAL[:-1]), SEVERAL[-1]]
)
def test_several_processes_compute_the_same_and_read_what_one_wrote(tmp_path, row):
    report = Report()
    compare((ROWS[0], row), tmp_path, report)
    assert report.exit_code() == 0
