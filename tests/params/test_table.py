"""Experiments on tables have the sizes that they say, and a file of one's own becomes one."""

from __future__ import annotations

import pytest

import lingo
from lingo.data import CategoryColumn, CsvInput, NumberColumn
from lingo.datasets import SampleTable, write_sample_table
from lingo.datasets.sample_table import sample_cells
from params import table as experiments

SIZES = {
    "table.mine": 4_675,
    "table.wine": 5_251,
    "table.breast_cancer": 6_274,
    "table.diabetes": 5_121,
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_exact(name: str) -> None:
    task = lingo.get(name).build().task
    assert sum(spec.size for spec in task.weights().values()) == SIZES[name]
    assert f"{SIZES[name]:,} weights" in " ".join(
        (getattr(experiments, name.partition(".")[2]).__doc__ or "").split()
    )


@pytest.mark.parametrize("name", SIZES)
def test_columns_are_all_those_of_scikit_learn(name: str) -> None:
    data = lingo.get(name).train_input
    assert data.cls is SampleTable
    cells = sample_cells(data.table)
    assert {*data.columns, data.label} == {*cells}
    if data.classes:
        assert data.classes == tuple(sorted({*cells[data.label]}))


def test_a_file_of_ones_own_is_read_by_the_label(tmp_path) -> None:
    write_sample_table("wine", tmp_path / "w.csv")
    exp = lingo.get(f"table.mine(file={tmp_path}/w.csv, label=wine, ignore=('hue', 'ash'))")
    data = exp.train_input
    assert data.cls is CsvInput
    assert len(data.columns) == 11
    assert data.classes == ("class_0", "class_1", "class_2")
    assert exp.build().task.p.class_names == data.classes


def test_a_column_changes_its_meaning_by_one_flag() -> None:
    exp = lingo.get("table.diabetes", "TableInput.columns['age']=CategoryColumn(num_values=60)")
    for data in (exp.train_input, exp.eval_inputs["heldout"]):
        assert data.columns["age"].cls is CategoryColumn
        assert data.columns["bmi"].cls is NumberColumn
    assert exp.build().task.p.category_sizes == (60, 2)
