"""Where values come from."""

from __future__ import annotations

import pathlib
from collections.abc import Callable


def test_the_chain_ends_with_what_is_in_force(lingo: Callable, toys: pathlib.Path) -> None:
    done = lingo("why", "max_steps", "--exp=narrow", "--set=max_steps=3", "--set=max_steps=4")
    assert (done.code, done.err) == (0, "")
    path, *steps = done.out.splitlines()
    assert path == "max_steps"
    assert [step.split()[0] for step in steps] == ["1000", "3", "4"]
    assert "default of Experiment, " in steps[0]
    assert steps[-1].endswith("--set max_steps=4")


def test_what_a_run_was_given_stands_in_its_configuration(lingo, tmp_path):
    config = lingo("show", "--exp=narrow", "--set=max_steps=3", "--format=json").out
    (tmp_path / "config.json").write_text(config)
    assert lingo("why", "max_steps", "--run=.").out.splitlines()[-1].split()[0] == "3"
