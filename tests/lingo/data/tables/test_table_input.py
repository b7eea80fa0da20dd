"""Rows of tables become arrays, on the host and in TensorFlow alike."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data import CategoryColumn, CsvInput, DateColumn, NumberColumn, TableInput, read_table
from lingo.data.files import DataError

TEXT = """id,size (cm),day,job,sort
1,3.5,31.1.2024,nurse,cat
2,NA,29.2.2024 12:00,"smith, b",dog
3,4,?, nurse ,cat
4,1,31.12.1969,,
5,1e3,1.3.1900,NA,dog
"""


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "t.csv"
    path.write_text(TEXT)
    return path


def read(file: pathlib.Path, **fields: Any) -> TableInput:
    fields = {"batch_size": 4, "repeat": False, "shuffle": False, "label": "sort"} | fields
    return read_table(file, **fields).build()


def test_a_batch_has_numbers_categories_and_labels_as_specs_say(file) -> None:
    data = read(file, ignore=["id"])
    specs = data.specs()  # before the file is read
    file.rename(moved := file.with_suffix(".moved"))
    assert read_fails(data) == "no file matches"
    moved.rename(file)
    batch = data.batch(0)
    data.check_batch(batch)
    days = [19753, 19782.5, np.nan, -25508]
    np.testing.assert_array_equal(batch["numbers"][:, 0], np.array([3.5, np.nan, 4, 1e3], "f"))
    np.testing.assert_array_equal(batch["numbers"][:, 1], np.array(days, "f"))
    first, second, third, fourth = batch["categories"][:, 0].tolist()
    assert first == third != second
    assert fourth == [-1, -1]
    assert batch["labels"].tolist() == [0, 1, 0, 1]
    assert batch["weights"].tolist() == [1] * 4
    assert {name: spec[1] for name, spec in specs.items()} == {
        name: str(array.dtype) for name, array in batch.items()
    }


def read_fails(data: TableInput) -> str:
    with pytest.raises(DataError) as error:
        data.prepare()
    return str(error.value)[:15]


def test_offers_are_known_without_the_file() -> None:
    columns = {"a": NumberColumn, "b": CategoryColumn.params(num_values=3), "c": DateColumn}
    data = CsvInput.params(file="none.csv", columns=columns, batch_size=1, classes=("x", "y"))
    assert data.build().offers() == {
        "num_numbers": 2,
        "category_sizes": (3,),
        "class_names": ("x", "y"),
    }
    assert data.build().class_names == ("x", "y")


def test_splits_share_no_row_and_equal_rows_stay_together(tmp_path) -> None:
    draw = np.random.RandomState(0)
    rows = [f"{i % 150},{draw.randint(2)}" if i < 150 else "" for i in range(150)]
    file = tmp_path / "t.csv"
    file.write_text("\n".join(["x,y", *rows, *rows]))
    found = {}
    for split in ("train", "heldout", "all"):
        data = read(file, label="y", split=split, batch_size=300)
        batch = data.batch(0)
        found[split] = batch["numbers"][batch["weights"] > 0, 0].tolist()
    assert not {*found["train"]} & {*found["heldout"]}
    assert sorted(found["train"] + found["heldout"]) == sorted(found["all"])
    assert 0.1 < len(found["heldout"]) / 300 < 0.3
    with file.open("a") as stream:
        stream.write("\n1000,1")
    again = read(file, label="y", split="heldout", batch_size=300)
    batch = again.batch(0)
    assert {*found["heldout"]} <= {*batch["numbers"][batch["weights"] > 0, 0].tolist()}


def test_a_step_has_the_same_rows_whenever_it_is_asked_for(tmp_path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("\n".join(["x,y", *(f"{i},{i % 2}" for i in range(20))]))
    first, second = (read(file, label="y", repeat=True, shuffle=True, seed=5) for _ in range(2))
    first.check_repeatable()
    for step in (7, 0, 30):
        np.testing.assert_array_equal(first.batch(step)["numbers"], second.batch(step)["numbers"])
    epoch = np.concatenate([first.batch(step)["numbers"][:, 0] for step in range(5)])
    assert sorted(epoch.tolist()) == list(range(20))


def test_remarks_tell_what_is_read_and_what_is_left_out(file) -> None:
    lines = read(file, repeat=True, ignore=["id"]).remarks()
    assert lines == [
        "left out 1 rows without a 'sort'",
        "size (cm): number, 3.5 to 1000, 1 missing",
        "day: date, 1900-03-01 to 2024-02-29, 1 missing",
        "job: category, 2 values: nurse, smith, b, 1 missing",
        "sort: the label, one of 2 classes: cat, dog",
        "not used: id",
    ]
    assert "it seems to count rows" in read(file, repeat=True, label=None).remarks()[0]


def test_another_file_needs_the_columns_but_no_label(file, tmp_path) -> None:
    data = read(file, split="heldout", ignore=["id"], repeat=True, shuffle=True)
    other = tmp_path / "new.csv"
    other.write_text("job,extra,day,size (cm)\npilot,1,1.1.2024,7\nnurse,2,,8\n")
    new = data.p.copy().build().unlabeled_params(str(other)).build()
    batch = new.batch(0)
    assert batch["numbers"][:2, 0].tolist() == [7, 8]
    assert "labels" not in batch
    assert new.example_names(np.arange(2)) == [f"{other}, line 2", f"{other}, line 3"]
    other.write_text("job,day\npilot,1.1.2024\n")
    with pytest.raises(
        DataError, match=r"new\.csv lacks the column 'size \(cm\)': it has job, day"
    ):
        data.unlabeled_params(str(other)).build().prepare()


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("3,4,?", "3,1e99,?", r"line 4, column 'size \(cm\)': '1e99' is no number"),
        ("3,4,?", "3,four,?", r"line 4, column 'size \(cm\)': 'four' is no number.*`missing`"),
        ("3,4,?", "3,4,May", r"line 4, column 'day': 'May' is no date \(day_first\)"),
        ("nurse ,cat", "nurse ,cow", r"line 4, column 'sort': 'cow' is not one of .* cat, dog"),
        ("id,size", "id,Size", r"lacks the column 'size \(cm\)': it has id, Size \(cm\), day"),
    ],
)
def test_a_file_that_changed_its_kind_is_refused(file, old: str, new: str, error: str) -> None:
    params = read(file).p.copy()
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(DataError, match=error):
        params.build().prepare()


def test_the_error_on_a_label_that_is_no_number_offers_classes(file) -> None:
    params = read(file, label="size (cm)", predict="number").p.copy()
    file.write_text(TEXT.replace("3,4,?", "3,four,?"))
    with pytest.raises(DataError, match=r"'four' is no number.*, or predict classes: .*\"class\""):
        params.build().prepare()


def test_the_fingerprint_follows_cells_and_not_the_name_of_the_file(file, tmp_path) -> None:
    first = read(file).fingerprint()
    assert first["rows"] == 4
    file.write_text(TEXT.replace("3.5", "3.6"))
    assert read(file).fingerprint()["digest"] != first["digest"]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"columns": {}}, "columns is empty"),
        ({"label": "a"}, "columns has 'a', but this is the label"),
        ({"classes": ("x", "x")}, "has a name twice"),
        ({"delimiter": "::"}, "delimiter='::' is not one character"),
        ({"file": ""}, "file is empty"),
        ({"heldout_fraction": 1.0}, "not between 0 and 1"),
    ],
)
def test_fields_that_make_no_sense_are_refused(fields: dict[str, Any], error: str) -> None:
    params = CsvInput.params(file="t.csv", columns={"a": NumberColumn}, batch_size=1)
    with pytest.raises(ParamError, match=error):
        params.set(**fields).build()


# ---- rows that are given, and formatted numbers --------------------------------------------------


def test_given_rows_become_what_the_same_rows_of_a_file_become(file) -> None:
    data = read(file, ignore=["id"])
    rows = {
        "size (cm)": [3.5, None, np.float32(4), 1000, float("nan")],
        "day": ["31.1.2024", "29.2.2024 12:00", "?", "1.3.1900", None],
        "job": ["nurse", "smith, b", " nurse ", "NA", None],
        "unused": [0] * 5,
    }
    batch = data.given_rows(rows, batch_size=5).batch(0)
    expected = data.batch(0)
    for name in ("numbers", "categories"):
        np.testing.assert_array_equal(batch[name][:4], expected[name])
    assert np.isnan(batch["numbers"][4]).all()
    assert batch["categories"][4].tolist() == [[-1, -1]]
    one = data.given_rows({name: values[0] for name, values in rows.items()}, batch_size=1)
    np.testing.assert_array_equal(one.batch(0)["numbers"], expected["numbers"][:1])


def test_numbers_are_given_as_numbers_whatever_the_decimal_mark_of_the_file(tmp_path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a;b\n1,5;x\n2,5;y\n")
    data = read(file, label="b")
    assert data.given_rows({"a": [1.5, 1e-7]}, batch_size=2).batch(0)["numbers"].tolist() == [
        [1.5],
        [np.float32(1e-7)],
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"day": ["1.1.2024"], "job": ["x"]}, "the given table lacks the column 'size (cm)'"),
        (
            {"size (cm)": [1, 2], "day": ["1.1.2024"], "job": ["x"]},
            "columns have [1, 2] values: each has one for each row",
        ),
        (
            {"size (cm)": ["big"], "day": ["1.1.2024"], "job": ["x"]},
            "row 0, column 'size (cm)': 'big' is no number",
        ),
        ({"size (cm)": [], "day": [], "job": []}, "the given table has no rows"),
        (
            {"size (cm)": [1, 2], "day": ["1.1.2024"] * 2, "job": "xy"},
            "'job' has one value, but other columns have lists",
        ),
        (
            {"size (cm)": 1, "day": ["1.1.2024"] * 2, "job": ["x"] * 2},
            "'size (cm)' has one value, but other columns have lists",
        ),
    ],
)
def test_a_mistake_in_given_rows_is_told(file, rows, message) -> None:
    with pytest.raises((DataError, ParamError)) as error:
        read(file, ignore=["id"]).given_rows(rows, batch_size=4).prepare()
    assert message in str(error.value)


def test_formatted_numbers_are_told(tmp_path) -> None:
    file = tmp_path / "t.csv"
    cells = [f'"{i % 7},500.0",{i % 4} %,k{i % 5},"$ {i},000",{i % 2}' for i in range(40)]
    file.write_text("\n".join(["sum,share,kind,each,y", *cells]))
    lines = read(file, label="y", repeat=True).remarks()
    told = [line.partition(":")[0] for line in lines if "these look like numbers" in line]
    assert told == ["sum", "share", "each"]  # `each` is not used: nearly all its cells differ
