"""The study of trunks of Mask R-CNN: its page shows what is in the file of its results."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tools.studies import scenes
from tools.studies.__main__ import RESULTS
from tools.studies.page import NONE, fill_tables
from tools.studies.run import run
from tools.studies.trial import SEEDS, Result, Results, Trial, identity

SMALL = (
    "max_steps=1",
    "eval_inputs['heldout'].max_batches=1",
    "GlyphSceneInput.num_scenes=32",
    "task.num_eval_images=32",
)


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(RESULTS / "scenes.jsonl")


def test_every_line_is_of_an_experiment_as_it_is(results: Results) -> None:
    assert [result.trial for result in results.stale] == []
    wanted = {identity(trial) for trial in scenes.trials(results)}
    assert {result.digest for result in results} <= wanted
    assert len(wanted) == len(scenes.ARMS) * len(SEEDS)


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    page = scenes.PAGE.read_text()
    assert page == fill_tables(page, scenes.tables(results))


def test_a_row_has_means_and_ranges_in_percent_and_what_is_missing(tmp_path: Path) -> None:
    results = Results(tmp_path / "scenes.jsonl")
    for seed in SEEDS:
        trial = scenes.ARMS["ResNet"]._replace(seed=seed)
        metrics = {"ap": 0.4 + seed / 100, "mask_ap": 0.3}
        results.add(Result(trial, identity(trial), "done", 9, metrics, 600.0, "commit"))
    rows = [row.strip("| ").split(" | ") for row in scenes.tables(results)["trunks"]]
    mask, minutes = "30.0 (30.0 to 30.0)", "10 (10 to 10)"
    assert rows[2] == ["ResNet", "41.0 (40.0 to 42.0)", NONE, mask, NONE, minutes]
    assert rows[3][1:] == [NONE] * 5


def test_the_first_seed_of_an_arm_is_measured_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = scenes.ARMS["ResNet"]._replace(overrides=SMALL)
    monkeypatch.setattr(scenes, "ARMS", {**scenes.ARMS, "ResNet": trial})
    monkeypatch.setattr(scenes, "PICTURES", tmp_path)
    results, folder = Results(tmp_path / "scenes.jsonl"), tmp_path / "runs"

    def trials(results: Results) -> list[Trial]:
        return [trial]

    limits = {"num_workers": 1, "seconds": 60.0}
    assert run(trials, results, folder=folder, measure=scenes.measure, **limits)
    assert all(results.metric(trial, tag) is not None for tag in scenes.METRICS.values())
    width, height = Image.open(tmp_path / "masks_resnet.png").size
    assert min(width, height) > 2 * 288  # four scenes, each of three times 96 pixels
