"""Promise 2: the real commands with several processes compute and save what one process does.

Of runtimes in one process, `tests/lingo/runtimes/test_same.py` claims the same.
"""

from __future__ import annotations

import pathlib

import pytest

from tools.bench.runtimes import ROWS, table
from tools.bounds import Bounds


@pytest.mark.faults
def test_several_processes_compute_the_same_and_read_what_others_wrote(
    tmp_path: pathlib.Path,
) -> None:
    rows = (ROWS[0], *(row for row in ROWS if row.num_workers > 1))
    bounds, lines = Bounds(), table(rows, tmp_path)
    assert len(lines) == 3
    for line in lines:
        line.hold(bounds, len(lines))
    assert bounds.exit_code() == 0
