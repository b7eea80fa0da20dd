"""Promise 2: the real commands with several processes compute and save what one process does.

Of runtimes in one process, `tests/lingo/runtimes/test_same.py` claims the same.
"""

import pytest

from tools.bench.runtimes import ROWS, SETTINGS, compare
from tools.harness import Report

SMALL = (*SETTINGS, "exp.model_dim=32", "exp.num_layers=2", "TextInput.length=32")
SEVERAL = [row for row in ROWS if row.num_workers > 1]


@pytest.mark.parametrize(
    "rows",
    [(ROWS[0], *SEVERAL), ROWS],
    ids=["several processes", "every runtime"],
)
def test_each_computes_what_one_process_does_and_reads_what_all_wrote(tmp_path, rows):
    report = Report()
    compare(rows, tmp_path, report, SMALL)
    assert report.exit_code() == 0
