"""Tables of scikit-learn are the same rows, read directly or from a CSV file."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from sklearn import datasets

from lingo.config.base.errors import MissingPackage
from lingo.data import NumberColumn, read_table
from lingo.datasets import SampleTable, sample_table, write_sample_table
from lingo.datasets.sample_table import TableName, sample_cells


@pytest.mark.parametrize("name", get_args(TableName))
def test_cells_are_the_numbers_and_classes_of_scikit_learn(name: TableName) -> None:
    options = {"scaled": False} if name == "diabetes" else {}
    data = getattr(datasets, f"load_{name}")(**options)
    *columns, label = sample_cells(name).values()
    np.testing.assert_array_equal(np.array(columns, float).T, data.data)
    expected = data.target if name == "diabetes" else data.target_names[data.target]
    np.testing.assert_array_equal(np.array(label, expected.dtype), expected)


@pytest.mark.parametrize("name", get_args(TableName))
def test_a_written_table_is_read_as_numbers(name: TableName, tmp_path) -> None:
    write_sample_table(name, tmp_path / "t.csv")
    params = read_table(tmp_path / "t.csv", label=name, batch_size=30)
    assert {column.cls for column in params.columns.values()} == {NumberColumn}
    assert bool(params.classes) == (name != "diabetes")
    direct = SampleTable.params(
        table=name, columns=params.columns, label=name, classes=params.classes, batch_size=30
    )
    first, second = params.build(), direct.build()
    for array, values in first.batch(3).items():
        np.testing.assert_array_equal(second.batch(3)[array], values)
    assert first.fingerprint()["digest"] == second.fingerprint()["digest"]
    assert second.fingerprint()["source"] == f"{name} of scikit-learn"


def test_a_file_of_new_rows_is_read_with_the_columns_of_the_table(tmp_path) -> None:
    write_sample_table("wine", tmp_path / "t.csv")
    columns = dict.fromkeys(sample_cells("wine"), NumberColumn)
    del columns["wine"]
    data = SampleTable.params(table="wine", columns=columns, label="wine", batch_size=178)
    batch = data.build().unlabeled_params(str(tmp_path / "t.csv")).build().batch(0)
    expected = datasets.load_wine().data.astype("f")
    np.testing.assert_array_equal(batch["numbers"], expected)
    assert "labels" not in batch


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(sample_table.importlib, "import_module", fail)
    with pytest.raises(MissingPackage, match=r"wine needs scikit-learn.*'lingo-tf\[data\]'"):
        sample_cells("wine")
