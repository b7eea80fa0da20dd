"""Layers are fitted once, before step 1, to the same values in every process of a run."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lingo
from lingo.checkpoints.sources.warm_start import WarmStart
from lingo.config.params import Params
from lingo.data import read_table
from lingo.learner.state import load_arrays
from lingo.optim import Adam
from lingo.processes.processes import ALONE
from lingo.trainer import first_state
from lingo.trainer.progress import Progress
from tasks.click.model import Mlp
from tasks.table.task import TablePrediction

MEAN = "model/numbers/mean"


@pytest.fixture
def table(tmp_path: Path) -> Params:
    """Returns an experiment on a table with numbers and categories, whose label is a number."""
    draw = np.random.RandomState(0)
    lines = [
        f"{x:.3f},{'' if i % 9 == 0 else x * x:},{'abc'[i % 3]},{3 * x + i % 3:.3f}"
        for i, x in enumerate(draw.normal(5, 2, 40))
    ]
    (tmp_path / "t.csv").write_text("\n".join(["x,square,kind,y", *lines]))
    data = read_table(tmp_path / "t.csv", label="y", batch_size=8)
    task = TablePrediction.params()
    task.all(Mlp).set(output_dims=(4,))
    return lingo.Experiment.params(
        task=task,
        train_input=data.copy().set(split="train"),
        eval_inputs={"heldout": data.copy().set(split="heldout", repeat=False)},
        optimizer=Adam.params(learning_rate=0.01, ema_decay=0.5),
        max_steps=6,
    )


def numbers(params: Params) -> np.ndarray:
    data = params.train_input.copy().set(repeat=False).build()
    batches = [data.batch(step) for step in range(data.num_batches())]
    return np.concatenate([b["numbers"][b["weights"] > 0] for b in batches])


def test_states_are_fitted_to_the_training_rows_and_never_change(table, tmp_path) -> None:
    lingo.train(table, tmp_path / "run")
    rows = numbers(table).astype("d")
    for name, expected in (("mean", np.nanmean(rows, 0)), ("scale", np.nanstd(rows, 0))):
        for weights in ("trained", "ema"):
            model = lingo.load(tmp_path / "run")
            state = model._state.select(weights).state
            np.testing.assert_allclose(
                np.asarray(state[f"model/numbers/{name}"]), expected, rtol=1e-6
            )


def test_a_resumed_run_fits_nothing_and_ends_bit_by_bit_the_same(
    table: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lingo.train(table, tmp_path / "whole")
    lingo.train(table.copy().set(max_steps=3), tmp_path / "parts")

    def refuse(*args: Any) -> None:
        raise AssertionError("a resumed run was fitted")

    monkeypatch.setattr(first_state, "fit_layers", refuse)
    lingo.train(table, tmp_path / "parts")
    whole, parts = (load_arrays(lingo.load(tmp_path / d)._state) for d in ("whole", "parts"))
    assert whole.step == parts.step == 6
    for kind in ("weights", "state"):
        for where, value in getattr(whole, kind).items():
            np.testing.assert_array_equal(getattr(parts, kind)[where], value, err_msg=where)
    assert lingo.load(tmp_path / "whole").evaluate() == lingo.load(tmp_path / "parts").evaluate()


class Follower:
    """The second process of a run, which gets what the leader shared."""

    index, count, is_leader = 1, 2, False

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def share(self, name: str, value: str | None) -> str:
        assert value is None
        return self._values[name]


def run_of(params: Params, processes: Any) -> Any:
    progress = Progress(enabled=False)
    return types.SimpleNamespace(experiment=params.build(), processes=processes, progress=progress)


def test_other_processes_get_the_leaders_values_and_read_no_data(table, monkeypatch) -> None:
    shared: dict[str, str] = {}

    class Leader(type(ALONE)):
        def share(self, name: str, value: str | None) -> str:
            shared[name] = value or ""
            return super().share(name, value)

    first = first_state.first_state(run_of(table, Leader()), None)
    monkeypatch.setattr(first_state, "training_examples", None)
    second = first_state.first_state(run_of(table, Follower(shared)), None)
    for where, value in load_arrays(first).state.items():
        np.testing.assert_array_equal(np.asarray(second.state[where]), value)
    assert np.asarray(first.state[MEAN]).min() > 1


def test_a_run_that_goes_back_to_step_0_gets_the_same_values(table) -> None:
    run = run_of(table, ALONE)
    first, again = first_state.first_state(run, None), first_state.load_state(run, None, None)
    for where, value in load_arrays(first).state.items():
        np.testing.assert_array_equal(np.asarray(again.state[where]), value)


def test_a_warm_start_keeps_the_states_of_its_source(table, tmp_path) -> None:
    lingo.train(table.copy().set(max_steps=1), tmp_path / "source")
    source = tmp_path / "source"
    text = (tmp_path / "t.csv").read_text().splitlines()
    (tmp_path / "t.csv").write_text("\n".join(text[:20]))
    fine = table.copy().set(init_from=WarmStart.params(path=str(source)))
    experiment = fine.build()
    warm = experiment.warm_start()
    assert warm is not None
    run = run_of(fine, ALONE)
    state = load_arrays(first_state.first_state(run, warm)).state
    old = load_arrays(lingo.load(source)._state).state
    for where, value in state.items():
        np.testing.assert_array_equal(value, old[where])
    other = load_arrays(first_state.first_state(run, None)).state
    assert (other[MEAN] != old[MEAN]).any()
