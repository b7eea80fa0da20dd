"""The study of trunks of Mask R-CNN: its page shows what is in the file of its results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lingo
from lingo.metrics.sample_picture import PREDICTION, TRUTH
from tools.studies import scenes
from tools.studies.__main__ import RESULTS
from tools.studies.page import NONE, fill_tables
from tools.studies.trial import SEEDS, Result, Results, identity


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


class PerfectModel:
    """Stands in for a trained model: it finds all objects of the first held-out scenes."""

    def __init__(self) -> None:
        self.experiment = lingo.get(scenes.NAME).build()

    def predict(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        truth = self.experiment.eval_inputs["heldout"].batch(0)
        num = len(batch["images"])
        np.testing.assert_array_equal(batch["images"], truth["images"][:num])
        found = {name: truth[name][:num] for name in ("boxes", "box_labels", "masks")}
        return found | {"box_scores": (found["box_labels"] > 0).astype("f")}


def test_the_first_seeds_of_two_arms_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "PICTURES", tmp_path)
    monkeypatch.setattr(lingo, "load", lambda run: PerfectModel())
    for trial in scenes.trials(Results(tmp_path / "scenes.jsonl")):
        assert scenes.measure(trial, tmp_path / "run") == {}
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(scenes.DRAWN.values())
    picture = np.asarray(Image.open(tmp_path / "masks_resnet.png"))
    assert min(picture.shape[:2]) > 2 * 288  # two rows of two scenes, each of 3 x 96 pixels
    for colour in (TRUTH, PREDICTION):
        assert (picture == colour).all(-1).any()
