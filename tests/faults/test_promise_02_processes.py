"""Promise 2: the real commands with several processes compute and save what one process does.

Of runtimes in one process, `tests/lingo/runtimes/test_same.py` claims the same.
"""

import pytest

from tools.bench.runtimes import ROWS, compare
from tools.harness import Report


@pytest.mark.faults
def test_several_processes_compute_the_same_and_read_what_others_wrote(tmp_path):
    rows = (ROWS[0], *(row for row in ROWS if row.num_workers > 1))
    report = Report()
    compare(rows, tmp_path, report)
    assert report.exit_code() == 0
