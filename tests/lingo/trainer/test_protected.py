"""What stays beside the latest is what the run left, and what it would go back to."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import open_checkpoint
from lingo.checkpoints.run_counters import Health, RunCounters, read_counters
from lingo.checkpoints.store import select_kept
from lingo.config.params import Params
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.loop import Outcome
from lingo.trainer.protected import protected

Make = Callable[..., Params]
Train = Callable[..., Outcome]


@pytest.mark.parametrize("keep_best", [0, 1])
def test_a_run_leaves_what_its_last_checkpoint_says_and_nothing_else(
    experiment: Make, run: Train, text: str, tmp_path: pathlib.Path, keep_best: int
) -> None:
    params = experiment(text, max_steps=7)
    params.checkpoint.set(every_steps=2, keep=1, keep_every_steps=None, keep_best=keep_best)
    params.evaluate.set(every_steps=3, metric="same/loss", goal="max")  # the first is best
    run(params, tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    steps = store.steps(directory.checkpoints)
    last = open_checkpoint(store.step_path(directory.checkpoints, steps[-1]))
    built, at = params.build(), read_counters(last.step, last.metadata)
    best, back = protected(built, directory, at, steps)
    assert sorted(select_kept(steps, keep=1, best=best, rewind=back)) == steps
    assert steps == [3, 6, 7][1 - keep_best :]  # 7 was not due: 6 to go back to


@pytest.mark.parametrize(
    ("anomalous", "back"), [(0, [6]), (1, [6]), (2, [4]), (4, [2]), (6, [1]), (7, [])]
)
def test_a_run_in_trouble_goes_back_to_before_it_to_what_was_due_if_it_can(
    experiment: Make, text: str, tmp_path: pathlib.Path, anomalous: int, back: list[int]
) -> None:
    params = experiment(text, max_steps=20).set(eval_inputs={})
    params.checkpoint.set(every_steps=2, keep_every_steps=None)
    at = RunCounters(7, health=Health(num_skipped=anomalous, num_anomalous=anomalous))
    found = protected(params.build(), RunDirectory(tmp_path / "run"), at, [1, 2, 3, 4, 5, 6, 7])
    assert found.back == back
    assert found.best == []
