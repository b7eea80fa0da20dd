"""The tables that come with scikit-learn: real data that needs no download."""

from __future__ import annotations

import csv
import importlib
import io
import os
from pathlib import Path
from typing import Any, Literal

from lingo.config.base.errors import MissingPackage
from lingo.data.tables.cells import Cells
from lingo.data.tables.table_input import TableInput
from lingo.storage.files import open_atomic

TableName = Literal["breast_cancer", "diabetes", "iris", "wine"]


class SampleTable(TableInput):
    """A table of scikit-learn's, `pip install 'lingo-tf[data]'`.

    - iris: 150 flowers of 3 species by 4 lengths (Fisher 1936).
    - wine: 178 wines of 3 cultivars by 13 measurements (UCI).
    - breast_cancer: 569 tumours, benign or malignant, by 30 measurements (UCI).
    - diabetes: 442 patients by 10 measurements, and the disease's progression after a year (Efron
      et al. 2004).

    The label column has the table's name.
    """

    table: TableName

    thread_safe = True

    def read_cells(self) -> Cells:
        columns = sample_cells(self.p.table)
        num = len(columns[self.p.table])
        return Cells(columns, [f"{self.p.table}, row {i}" for i in range(num)])

    def describe(self) -> str:
        return f"{self.p.table} of scikit-learn"


def sample_cells(table: TableName) -> dict[str, list[str]]:
    """Returns the cells of a table by column; the last column is the label, named like the table.

    Raises MissingPackage if scikit-learn is not installed.
    """
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError:
        raise MissingPackage(
            f"The table {table} needs scikit-learn, which is not installed:"
            " pip install 'lingo-tf[data]'"
        ) from None
    options = {"scaled": False} if table == "diabetes" else {}
    data: Any = getattr(datasets, f"load_{table}")(**options)
    columns = [[_to_cell(value) for value in column] for column in data.data.T.tolist()]
    cells = dict(zip([str(name) for name in data.feature_names], columns, strict=True))
    target = data.target.tolist()
    names = getattr(data, "target_names", None)
    cells[table] = [_to_cell(v) if names is None else str(names[v]) for v in target]
    return cells


def write_sample_table(table: TableName, file: str | os.PathLike[str]) -> None:
    """Writes a table of scikit-learn's as a CSV file, whose last column is the label.

    Raises MissingPackage if scikit-learn is not installed, and StorageError if the file cannot be
    written.
    """
    columns = sample_cells(table)
    lines = [list(columns), *zip(*columns.values(), strict=True)]
    with open_atomic(Path(file)) as stream:
        stream.write(_to_csv(lines).encode())


def _to_cell(value: float) -> str:
    """Returns a number as a spreadsheet shows it: 3, not 3.0."""
    return str(int(value)) if value == int(value) else repr(value)


def _to_csv(rows: list[Any]) -> str:

    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()
