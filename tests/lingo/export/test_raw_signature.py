"""An exported model of a table takes the file's raw cells, and computes what its run does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lingo
from lingo.data import read_table
from lingo.optim import Adam
from lingo.serving import codec
from lingo.serving.model import Refusal, ServedModel, load_export, load_run
from lingo.trainer.trained import Trained
from tasks.click.model import Mlp
from tasks.table.task import TablePrediction

NEW = """sort of trip,age,more,visited on
walk,44,1,1.5.2024
plane,,2,31.12.1969 23:59
,70.5,3,?
"""
ROWS: list[dict[str, Any]] = [  # of this file, as a request has them
    {"sort_of_trip": " walk", "age": 44, "visited_on": "1.5.2024"},
    {"sort_of_trip": "plane", "age": None, "visited_on": "31.12.1969 23:59"},
    {"sort_of_trip": "", "age": 70.5, "visited_on": "?"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a table, a trained run, an export and further rows without labels."""
    folder: Path = tmp_path_factory.mktemp("trips")
    draw = np.random.RandomState(0)
    lines = ["visited on,sort of trip,age,mood"]
    for i in range(60):
        sort = draw.choice(["walk", "bike", "car", ""])
        age = draw.randint(18, 80) if i % 7 else "NA"
        lines.append(f"{i % 28 + 1}.{i % 12 + 1}.2024,{sort},{age},{'bad' if i % 3 else 'good'}")
    (folder / "t.csv").write_text("\n".join(lines))
    (folder / "new.csv").write_text(NEW)
    data = read_table(folder / "t.csv", label="mood", batch_size=16)
    task = TablePrediction.params()
    task.all(Mlp).set(output_dims=(8,))
    experiment = lingo.Experiment.params(
        task=task,
        train_input=data.copy().set(split="train"),
        eval_inputs={"heldout": data.copy().set(split="heldout", repeat=False)},
        optimizer=Adam.params(learning_rate=0.01),
        max_steps=4,
    )
    lingo.train(experiment, folder / "run")
    lingo.load(folder / "run").export(folder / "export", format="savedmodel")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Trained:
    return lingo.load(folder / "run")


def predict(model: ServedModel, rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    signature = model.signatures["predict"]
    body = json.dumps({"instances": rows}).encode()
    return signature.compute(codec.read_inputs(codec.read_call(body), signature.inputs))


def test_the_export_was_compared_with_the_run_on_raw_cells(folder: Path) -> None:
    manifest = json.loads((folder / "export" / "export.json").read_text())
    assert manifest["signatures"]["predict"]["inputs"] == {
        "age": [[None], "float32"],
        "sort_of_trip": [[None], "string"],
        "visited_on": [[None], "string"],
    }
    assert manifest["check"]["differences"]["predict"]["floats"] < 1e-5
    assert manifest["evaluation"]["before"] == manifest["evaluation"]["after"]


def test_requests_with_raw_cells_get_what_the_run_predicts_for_the_file(folder, model) -> None:
    expected = model.predict(str(folder / "new.csv"))
    served = load_export(folder / "export"), load_run(model, folder / "run")
    for found in (predict(one, ROWS) for one in served):
        np.testing.assert_allclose(found["logits"], expected["logits"], rtol=1e-5, atol=1e-6)
        names = [name.decode() for name in found["class"].tolist()]
        assert names == expected["class"].tolist()
        assert {*names} <= {"good", "bad"}


def test_a_run_is_served_without_its_table(folder, model, tmp_path) -> None:
    (folder / "t.csv").rename(tmp_path / "t.csv")
    try:
        found = predict(load_run(lingo.load(folder / "run"), folder / "run"), ROWS)
    finally:
        (tmp_path / "t.csv").rename(folder / "t.csv")
    expected = model.predict(str(folder / "new.csv"))
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=1e-5, atol=1e-6)


def test_a_request_with_a_wrong_cell_is_refused(folder: Path) -> None:
    served = load_export(folder / "export")
    for row, error in (
        ({"visited_on": "soon"}, "column `visited on`: `soon` is no date such as 31.1.2024"),
        ({"age": "old"}, "age: a value is a string"),
        ({"kind": "walk"}, "has 'kind': inputs are age, sort_of_trip, visited_on"),
    ):
        with pytest.raises(Refusal, match=error):
            predict(served, [ROWS[0] | row])
    with pytest.raises(Refusal, match="lacks 'age': inputs are age"):
        predict(served, [{k: v for k, v in ROWS[0].items() if k != "age"}])


def test_a_format_with_static_shapes_takes_encoded_arrays(folder, model, tmp_path) -> None:
    pytest.importorskip("jax", reason="the extra `mesh` is not installed")
    model.export(tmp_path / "hlo", format="stablehlo", batch_size=4)
    manifest = json.loads((tmp_path / "hlo" / "export.json").read_text())
    assert manifest["signatures"]["predict"]["inputs"] == {
        "categories": [[4, 1, 2], "int32"],
        "numbers": [[4, 2], "float32"],
    }


def test_weights_of_8_bits_take_raw_cells_too(folder, model, tmp_path) -> None:
    model.export(tmp_path / "int8", format="savedmodel", quantize="int8_weights")
    found = predict(load_export(tmp_path / "int8"), ROWS)
    assert found["logits"].shape == (3, 2)
