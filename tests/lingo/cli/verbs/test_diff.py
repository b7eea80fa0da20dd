"""Comparing experiments."""

from __future__ import annotations

import pathlib
from collections.abc import Callable


def test_differences_are_shown_path_by_path(lingo: Callable) -> None:
    done = lingo("diff", "--exp=narrow", "--exp=toys.deep")
    assert done == (0, "task.stack.num_layers: 2 -> 4\n", "")


def test_what_one_side_lacks_is_absent(lingo: Callable) -> None:
    out = lingo("diff", "--exp=narrow", "--set=Sgd=AdamW").out
    assert "optimizer.momentum: 0.0 -> (absent)" in out


def test_overrides_change_both_of_two_and_equal_ones_differ_in_nothing(lingo: Callable) -> None:
    done = lingo("diff", "--exp=narrow", "--exp=toys.deep", "--set=Stack.num_layers=3")
    assert done == (0, "", "")


def test_runs_and_experiments_compare(lingo: Callable, tmp_path: pathlib.Path) -> None:
    for name in ("narrow", "toys.deep"):
        (tmp_path / name).mkdir()
        config = lingo("show", f"--exp={name}", "--format=json").out
        (tmp_path / name / "config.json").write_text(config)
    expected = "task.stack.num_layers: 2 -> 4\n"
    assert lingo("diff", "--run=narrow", "--run=toys.deep").out == expected
    assert lingo("diff", "--run=toys.deep", "--exp=narrow").out == expected
