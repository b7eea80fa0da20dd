"""Rows of tables as an input: their numbers, dates and categories, and a label.

    data = read_table("flowers.csv", label="species", batch_size=32)    # lingo/data/tables/read.py

Axes: B rows of a batch, R rows of the table, N columns of numbers and dates, T of categories.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config.base.types import FilePath
from lingo.config.params import ParamError, Params
from lingo.data.array_spec import ArraySpec
from lingo.data.example_input import IndexedInput
from lingo.data.files import DataError, describe_place, list_files, place_of
from lingo.data.index import Progress
from lingo.data.input import Input
from lingo.data.record_source import Splittable, split_hash
from lingo.data.tables.cells import Cells, looks_formatted, read_cells, to_cell
from lingo.data.tables.column import Column
from lingo.data.tables.encoder import ColumnEncoder

MISSING_CELLS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "?")
"""Cells that are missing values, unless the field `missing` names others."""

Decimal = Literal[".", ","]
"""The decimal mark of numbers."""

_MOST_SHOWN = 3
_FORMATTED = "these look like numbers: write 1234.5 for 1,234.5 or 12 for 12%"


class _Rows(NamedTuple):
    """The rows of an input's split, encoded."""

    arrays: dict[str, np.ndarray]  # the arrays of `TableInput`'s batches, [R, ...]
    kept: np.ndarray  # int64 [R], the index of each row among the rows of the files
    num_unlabeled: int  # rows that are left out because their label is missing


class TableInput(IndexedInput, Splittable, interface=True):
    """Rows of a table, each once per epoch in a new order; subclasses read the cells.

    `columns` says what a model gets, and `read_table` infers it. Other columns are not used. Rows
    without a label are left out. A hash of all cells of a row decides whether it is held out, so
    equal rows are in the same split.

    Batches: `numbers`, float32 [B, N], of the number and date columns, in order; missing values are
    NaN, and dates are days since 1970. `categories`, int32 [B, T, 2], fingerprints of the cells of
    category columns (`lingo.ops.fingerprint`); both words of a missing cell are -1. `labels`, int32
    [B], if there are `classes`, else `targets`, float32 [B]. An array without columns is left out.
    """

    columns: dict[str, Column]  # column -> its meaning, for the columns that a model gets
    label: str | None = None  # the column to predict; None: batches have no labels
    classes: tuple[str, ...] = ()  # cells of the label column, by label; empty: it has numbers
    missing: tuple[str, ...] = MISSING_CELLS  # cells that are missing values
    decimal: Decimal = "."  # decimal mark of numbers
    heldout_fraction: float = 0.2  # share that is held out, chosen by a hash of the row

    def check(self) -> None:
        IndexedInput.check(self)
        Splittable.check(self)
        p = self.p
        if not p.columns:
            raise ParamError("columns is empty: name those that a model gets, or call read_table")
        if p.label in p.columns:
            raise ParamError(f"columns has {p.label!r}, but this is the label: leave it out")
        if len(set(p.classes)) < len(p.classes):
            raise ParamError(f"classes={p.classes!r:.80} has a name twice")

    def setup(self) -> None:
        super().setup()
        self._cells = functools.cache(self._read_checked)
        self._rows = functools.cache(self._encode_rows)
        self.encoder = ColumnEncoder(self.p.columns, self.p.missing, self.p.decimal)

    def read_cells(self) -> Cells:
        """Returns the cells of the table; raises DataError if it cannot be read."""
        raise self._missing_method("read_cells", "it returns the cells of the table")

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.p.classes

    def unlabeled_params(self, path: str) -> Params:
        return CsvInput.params(file=path, **self._own_fields())

    def given_rows(self, rows: Mapping[str, Any], *, batch_size: int) -> Input:
        """Returns an input of rows without labels, {column: values [R]} or one row {column: value}.

        A value is a number, a date or the text of a cell; None and NaN are missing values. Columns
        that a model does not get are ignored.
        """
        values = {name: rows[name] for name in self.p.columns if name in rows}
        single = [n for n, value in values.items() if isinstance(value, str) or not np.ndim(value)]
        if len(single) == len(values):
            values = {name: [value] for name, value in values.items()}
        elif single:
            raise ParamError(
                f"{single[0]!r} has one value, but other columns have lists: give each column a"
                " list with a value per row, or give one row with one value per column"
            )
        if len(lengths := {len(value) for value in values.values()}) > 1:
            raise ParamError(f"columns have {sorted(lengths)} values: each has one for each row")
        numbers = range(max(lengths, default=0))
        input = _GivenRows.params(**self._own_fields()).set(batch_size=batch_size).build()
        input.given = Cells(
            {name: [to_cell(v, self.p.decimal) for v in own] for name, own in values.items()},
            [f"row {number}" for number in numbers],
        )
        return input

    def _own_fields(self) -> dict[str, Any]:
        """Returns the fields of an input of the same columns, without labels."""
        p = self.p
        own = {name: getattr(p, name) for name in ("batch_size", "classes", "missing", "decimal")}
        columns = {name: column.copy() for name, column in p.columns.items()}
        return own | {"columns": columns, "repeat": False, "shuffle": False}

    @property
    def declares_late(self) -> bool:
        return self.p.augment is not None

    def offers(self) -> dict[str, Any]:
        sizes = tuple(self.p.columns[name].num_values for name in self.encoder.categories)
        return {
            "num_numbers": len(self.encoder.numbers),
            "category_sizes": sizes,
            "class_names": self.p.classes,
        }

    def specs(self) -> dict[str, ArraySpec]:
        if self.declares_late:
            return super().specs()
        specs, size = Input.specs(self), self.p.batch_size
        if self.encoder.numbers:
            specs["numbers"] = ((size, len(self.encoder.numbers)), "float32")
        if self.encoder.categories:
            specs["categories"] = ((size, len(self.encoder.categories), 2), "int32")
        if self.p.label is not None:
            name, dtype = ("labels", "int32") if self.p.classes else ("targets", "float32")
            specs[name] = ((size,), dtype)
        return specs

    def prepare(self, *, progress: Progress | None = None) -> None:
        """Reads the table; raises DataError if it lacks a column, or has a cell of another kind."""
        del progress
        self._rows()

    def num_examples(self) -> int:
        return len(self._rows().kept)

    def read_indices(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        return {name: array[indices] for name, array in self._rows().arrays.items()}

    def example_names(self, numbers: np.ndarray) -> list[str]:
        places, rows = self._cells().places, self._row_indices(numbers)
        return [places[row] for row in rows.tolist()]

    def fingerprint(self) -> dict[str, Any]:
        """Returns the source, the number of rows, and a digest of their encoded cells."""
        digest, rows = hashlib.sha256(), self._rows()
        for name, array in sorted(rows.arrays.items()):
            digest.update(f"{name} {array.shape}".encode())
            digest.update(array.tobytes())
        return {
            "source": self.describe(),
            "rows": len(rows.kept),
            "bytes": sum(array.nbytes for array in rows.arrays.values()),
            "digest": digest.hexdigest(),
        }

    def describe(self) -> str:
        """Returns a phrase for the source of the table."""
        return type(self).__name__

    def remarks(self) -> list[str]:
        """Returns a line for each column of training data, and for rows that are left out."""
        rows, cells = self._rows(), self._cells()
        lines = []
        if rows.num_unlabeled:
            lines.append(f"left out {rows.num_unlabeled:,} rows without a {self.p.label!r}")
        if not self.p.repeat:
            return lines
        lines += [f"{name}: {self._describe_column(name)}" for name in self.p.columns]
        if self.p.label is not None:
            names = ", ".join(self.p.classes)
            kind = f"one of {len(self.p.classes)} classes: {names}" if names else "a number"
            lines.append(f"{self.p.label}: the label, {kind:.200}")
        others = [n for n in cells.columns if n not in self.p.columns and n != self.p.label]
        lines += [f"not used: {', '.join(others)}"] if others else []
        return lines + [f"{n}: {_FORMATTED}" for n in others if self._is_formatted(n)]

    def _is_formatted(self, name: str) -> bool:
        return looks_formatted({*self._cells().columns[name]}.difference(self.p.missing))

    def raw_examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the raw cells (`ColumnEncoder`) of examples, by `example_id`, int64 [B]."""
        columns, rows = self._cells().columns, self._row_indices(numbers).tolist()
        return self.encoder.to_raw(
            {name: [columns[name][row] for row in rows] for name in self.p.columns}
        )

    # ---- reading

    def _read_checked(self) -> Cells:
        cells = self.read_cells()
        wanted = [*self.p.columns, *([] if self.p.label is None else [self.p.label])]
        if lacking := [name for name in wanted if name not in cells.columns]:
            raise DataError(
                f"{self.describe()} lacks the column {lacking[0]!r}: it has"
                f" {', '.join(cells.columns):.200}."
            )
        if not cells.places:
            raise DataError(f"{self.describe()} has no rows.")
        return cells

    def _encode_rows(self) -> _Rows:
        cells, p = self._cells(), self.p
        kept = np.arange(len(cells.places))
        if p.label is not None:
            missing = set(p.missing)
            kept = np.array([i for i, c in enumerate(cells.columns[p.label]) if c not in missing])
        num_unlabeled = len(cells.places) - len(kept)
        if not len(kept):
            raise DataError(f"{self.describe()}: no row has a {p.label!r}.")
        kept = kept[self._in_split(kept)]
        if not len(kept):
            raise DataError(f"{self.describe()} has no rows in the split {p.split!r}.")
        arrays: dict[str, np.ndarray] = {}
        if self.encoder.numbers:
            values = [self._parse_column(name)[kept] for name in self.encoder.numbers]
            arrays["numbers"] = np.stack(values, axis=1).astype(np.float32)
        if self.encoder.categories:
            columns = (cells.columns[name] for name in self.encoder.categories)
            words = [self.encoder.fingerprints([column[i] for i in kept]) for column in columns]
            arrays["categories"] = np.stack(words, axis=1)
        if p.label is not None:
            if p.classes:
                arrays["labels"] = self._labels(p.label)[kept]
            else:
                arrays["targets"] = self._parse_column(p.label)[kept].astype(np.float32)
        return _Rows(arrays, kept, num_unlabeled)

    def _in_split(self, kept: np.ndarray) -> np.ndarray:
        """Returns whether rows, by index, int64 [R], are in this split, bool [R]."""
        if self.p.split == "all":
            return np.ones(len(kept), bool)
        columns = self._cells().columns.values()
        rows = ("\0".join(column[i] for column in columns) for i in kept.tolist())
        return self.in_split(np.array([split_hash(row.encode()) for row in rows], np.uint64))

    def _parse_column(self, name: str) -> np.ndarray:
        """Returns the numbers or dates of a column, float64 [rows]."""
        cells = self._cells()
        values, wrong = self.encoder.parse(name, cells.columns[name])
        if wrong is not None:
            kind = (
                f"date ({self.encoder.orders[name]})" if name in self.encoder.orders else "number"
            )
            other = (
                'predict classes: read_table(..., predict="class")'
                if name == self.p.label
                else "make the column a CategoryColumn"
            )
            raise DataError(
                f"{cells.where(wrong, name)}: {cells.columns[name][wrong]!r:.60} is no {kind}."
                f" Correct it, name it in `missing`, or {other}."
            )
        return values

    def _labels(self, label: str) -> np.ndarray:
        """Returns the number of each row's class, int32 [rows]; -1 for a missing label."""
        cells, missing = self._cells(), dict.fromkeys(self.p.missing, -1)
        numbers = missing | {name: i for i, name in enumerate(self.p.classes)}
        for i, cell in enumerate(cells.columns[label]):
            if cell not in numbers:
                raise DataError(
                    f"{cells.where(i, label)}: {cell!r:.60} is not one of the classes"
                    f" {', '.join(self.p.classes):.200}."
                )
        return np.array([numbers[cell] for cell in cells.columns[label]], np.int32)

    def _row_indices(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the index of each example's row in the files, by `example_id`, int64 [B]."""
        return self._rows().kept[self._order().indices(numbers)]

    def _describe_column(self, name: str) -> str:
        rows = self._rows()
        cells = self._cells().columns[name]
        column = [cells[i] for i in rows.kept.tolist()]
        missing = set(self.p.missing)
        num_missing = sum(cell in missing for cell in column)
        note = f", {num_missing:,} missing" if num_missing else ""
        if name in self.encoder.categories:
            known = sorted({*column} - missing)
            shown = ", ".join(known[:_MOST_SHOWN]) + (", ..." if known[_MOST_SHOWN:] else "")
            note += f"; {_FORMATTED}" if self._is_formatted(name) else ""
            return f"category, {len(known):,} values: {shown:.80}{note}"
        values = self.encoder.parse(name, column)[0]
        if num_missing == len(column):
            return f"no value{note}"
        low, high = np.nanmin(values), np.nanmax(values)
        if name in self.encoder.orders:
            first, last = (np.datetime64(int(day), "D") for day in (low, high))
            return f"date, {first} to {last}{note}"
        is_counter = high - low + 1 == len(column) == len({*column}) and low == int(low)
        hint = "; it seems to count rows: leave it out by `ignore`" if is_counter else ""
        return f"number, {low:g} to {high:g}{note}{hint}"


class _GivenRows(TableInput):
    """Rows that were given to `predict`."""

    thread_safe = True

    def setup(self) -> None:
        super().setup()
        self.given = Cells({}, [])

    def read_cells(self) -> Cells:
        return self.given

    def describe(self) -> str:
        return "the given table"

    def example_names(self, numbers: np.ndarray) -> list[str]:
        return []


class CsvInput(TableInput):
    """Rows of CSV files as spreadsheets write them, or of Parquet files (extra `parquet`).

    The first line has the names of the columns. Cells may stand in quotes, and then have line
    breaks. A file is in UTF-8, and its extension `.parquet` or `.pq` makes it Parquet.
    """

    file: FilePath  # a path, or a glob such as ~/sales/*.csv
    delimiter: str = ","  # between cells of CSV files

    thread_safe = True

    def check(self) -> None:
        super().check()
        if not self.p.file:
            raise ParamError("file is empty: give a path or a glob, such as ~/sales/*.csv")
        check_delimiter(self.p.delimiter)

    def read_cells(self) -> Cells:
        place = place_of(self.p.file)
        files = list_files([place])
        if not files:
            raise DataError(f"no file matches {self.p.file}. {describe_place(place)}")
        return read_cells(tuple(files), self.p.delimiter)

    def describe(self) -> str:
        return self.p.file

    def unlabeled_params(self, path: str) -> Params:
        return super().unlabeled_params(path).set(delimiter=self.p.delimiter)


def check_delimiter(delimiter: str) -> None:
    """Raises ParamError for a delimiter that cannot stand between cells."""
    if len(delimiter) != 1:
        raise ParamError(f"{delimiter=} is not one character")
