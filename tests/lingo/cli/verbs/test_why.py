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


def test_a_line_of_the_experiment_is_named(lingo: Callable, toys: pathlib.Path) -> None:
    out = lingo("why", "optimizer.learning_rate", "--exp=narrow").out
    line = next(
        i for i, x in enumerate((toys / "toys.py").read_text().splitlines(), 1) if "0.5" in x
    )
    assert f"{toys / 'toys.py'}:{line} in narrow" in out


def test_an_offer_is_named(lingo: Callable) -> None:
    assert "3  inherited from Stack" in lingo("why", "ToyLayer.dim", "--exp=narrow").out


def test_what_a_run_was_given_stands_in_its_configuration(
    lingo: Callable, tmp_path: pathlib.Path
) -> None:
    config = lingo("show", "--exp=narrow", "--set=max_steps=3", "--format=json").out
    (tmp_path / "config.json").write_text(config)
    assert lingo("why", "max_steps", "--run=.").out.splitlines()[-1].split()[0] == "3"


def test_an_item_that_is_not_there_is_refused(lingo: Callable) -> None:
    done = lingo("why", "eval_inputs['other']", "--exp=narrow")
    assert done.code == 2
    assert "eval_inputs has no item 'other'" in done.err
