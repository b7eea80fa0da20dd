"""Rows of tables as an input: their numbers, dates and categories, and a label.

    data = read_table("flowers.csv", label="species", batch_size=32)    # lingo/data/tables/read.py

Axes: B rows of a batch, R rows of the table, N columns of numbers and dates, T of categories.
"""

from __future__ import annotations

import functools
import hashlib
import keyword
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config.base.types import FilePath
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.data.array_spec import ArraySpec
from lingo.data.example_input import IndexedInput
from lingo.data.files import DataError, describe_place, list_files, place_of
from lingo.data.index import Progress
from lingo.data.input import Input
from lingo.data.record_source import Splittable, split_hash
from lingo.data.tables.cells import DATE_GROUPS, DATE_PATTERNS, Cells, parse_all, read_cells
from lingo.data.tables.column import CategoryColumn, Column, DateColumn
from lingo.ops.fingerprint import MISSING, fingerprint

MISSING_CELLS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "?")
"""Cells that are missing values, unless the field `missing` names others."""

_MOST_SHOWN = 3
_EPOCH_DAYS = 719_468  # from March 1 of the year 0 to 1970


class _Rows(NamedTuple):
    """The rows of an input's split, encoded."""

    arrays: dict[str, np.ndarray]  # the arrays of `TableInput`'s batches, [R, ...]
    kept: np.ndarray  # int64 [R], the index of each row among the rows of the files
    num_unlabeled: int  # rows that are left out because their label is missing


class TableInput(IndexedInput, Splittable, interface=True):
    """Rows of a table, each once per epoch in a new order; subclasses read the cells.

    `columns` says what a model gets, and `read_table` infers it. Other columns are not used. Rows
    without a label are left out. A hash of a row's cells decides whether the row is held out, so
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
    decimal: Literal[".", ","] = "."  # decimal mark of numbers
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
        columns = dict(self.p.columns)
        self._categories = [n for n, c in columns.items() if issubclass(c.cls, CategoryColumn)]
        self._numbers = [name for name in columns if name not in self._categories]
        self._orders = {n: c.order for n, c in columns.items() if issubclass(c.cls, DateColumn)}
        self._raw_names = raw_names(list(columns))

    def read_cells(self) -> Cells:
        """Returns the cells of the table; raises DataError if it cannot be read."""
        raise self._missing_method("read_cells", "it returns the cells of the table")

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.p.classes

    @property
    def declares_late(self) -> bool:
        return self.p.augment is not None

    def offers(self) -> dict[str, Any]:
        sizes = tuple(self.p.columns[name].num_values for name in self._categories)
        return {
            "num_numbers": len(self._numbers),
            "category_sizes": sizes,
            "class_names": self.p.classes,
        }

    def specs(self) -> dict[str, ArraySpec]:
        if self.declares_late:
            return super().specs()
        specs, size = Input.specs(self), self.p.batch_size
        if self._numbers:
            specs["numbers"] = ((size, len(self._numbers)), "float32")
        if self._categories:
            specs["categories"] = ((size, len(self._categories), 2), "int32")
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
        places, rows = self._cells().places, self._kept(numbers)
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
        return lines + ([f"not used: {', '.join(others)}"] if others else [])

    # ---- raw cells, for exports

    def raw_specs(self) -> dict[str, tuple[tuple[int | None, ...], str]]:
        return {
            self._raw_names[name]: ((None,), "float32" if self._is_number(name) else "string")
            for name in self.p.columns
        }

    def encode_raw(self, cells: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        named = {name: cells[self._raw_names[name]] for name in self.p.columns}
        arrays: dict[str, Any] = {}
        if self._numbers:
            values = [self._encode_number(name, named[name]) for name in self._numbers]
            arrays["numbers"] = tf.stack(values, axis=-1)
        if self._categories:
            texts = tf.stack([named[name] for name in self._categories], axis=-1)
            arrays["categories"] = self._encode_categories(texts)
        return arrays

    def raw_examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        cells, rows = self._cells(), self._kept(numbers).tolist()
        arrays = {}
        for name in self.p.columns:
            column = [cells.columns[name][row] for row in rows]
            if self._is_number(name):
                arrays[self._raw_names[name]] = self._parse(name, column)[0].astype(np.float32)
            else:
                arrays[self._raw_names[name]] = np.array([c.encode() for c in column], np.bytes_)
        return arrays

    def read_raw(self, cells: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        columns = {name: cells[self._raw_names[name]] for name in self.p.columns}
        numbers = [
            columns[name] if self._is_number(name) else self._parse(name, _texts(columns[name]))[0]
            for name in self._numbers
        ]
        arrays = {}
        if numbers:
            arrays["numbers"] = np.stack(numbers, axis=-1).astype(np.float32)
        if self._categories:
            texts = [_texts(columns[name]) for name in self._categories]
            arrays["categories"] = np.stack([*map(self._fingerprints, texts)], axis=1)
        return arrays

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
        if self._numbers:
            values = [self._parse_column(name)[kept] for name in self._numbers]
            arrays["numbers"] = np.stack(values, axis=1).astype(np.float32)
        if self._categories:
            columns = (cells.columns[name] for name in self._categories)
            words = [self._fingerprints([column[i] for i in kept]) for column in columns]
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
        columns = [self._cells().columns[name] for name in (*self.p.columns, self.p.label) if name]
        rows = ("\0".join(column[i] for column in columns) for i in kept.tolist())
        return self.in_split(np.array([split_hash(row.encode()) for row in rows], np.uint64))

    def _is_number(self, name: str) -> bool:
        return name not in self._categories and name not in self._orders

    def _parse(self, name: str, cells: list[str]) -> tuple[np.ndarray, int | None]:
        order, decimal = self._orders.get(name), self.p.decimal
        return parse_all(cells, self.p.missing, decimal=decimal, order=order)

    def _parse_column(self, name: str) -> np.ndarray:
        """Returns the numbers or dates of a column, float64 [rows]."""
        cells = self._cells()
        values, wrong = self._parse(name, cells.columns[name])
        if wrong is not None:
            kind = f"date ({self._orders[name]})" if name in self._orders else "number"
            raise DataError(
                f"{cells.where(wrong, name)}: {cells.columns[name][wrong]!r:.60} is no {kind}."
                " Correct it, name it in `missing`, or make the column a CategoryColumn."
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

    def _fingerprints(self, cells: list[str]) -> np.ndarray:
        """Returns the fingerprint of each cell, int32 [cells, 2]."""
        known = sorted({*cells})
        with tf.device("CPU:0"):
            words = fingerprint(tf.constant([text.encode() for text in known], tf.string)).numpy()
        places: dict[bytes, str] = {}
        for text, word in zip(known, words, strict=True):
            if (other := places.setdefault(word.tobytes(), text)) != text:
                raise DataError(f"{other!r} and {text!r} have the same fingerprint: rename one.")
        table = dict(zip(known, words, strict=True))
        table |= dict.fromkeys(self.p.missing, np.full(2, MISSING, np.int32))
        return np.stack([table[cell] for cell in cells])

    def _kept(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the index of each example's row in the files, by `example_id`, int64 [B]."""
        return self._rows().kept[self._order().indices(numbers)]

    def _describe_column(self, name: str) -> str:
        rows = self._rows()
        cells = self._cells().columns[name]
        column = [cells[i] for i in rows.kept.tolist()]
        missing = set(self.p.missing)
        num_missing = sum(cell in missing for cell in column)
        note = f", {num_missing:,} missing" if num_missing else ""
        if name in self._categories:
            known = sorted({*column} - missing)
            shown = ", ".join(known[:_MOST_SHOWN]) + (", ..." if known[_MOST_SHOWN:] else "")
            return f"category, {len(known):,} values: {shown:.80}{note}"
        values = self._parse(name, column)[0]
        if num_missing == len(column):
            return f"no value{note}"
        low, high = np.nanmin(values), np.nanmax(values)
        if name in self._orders:
            first, last = (np.datetime64(int(day), "D") for day in (low, high))
            return f"date, {first} to {last}{note}"
        is_counter = high - low + 1 == len(column) == len({*column}) and low == int(low)
        hint = "; it seems to count rows: leave it out by `ignore`" if is_counter else ""
        return f"number, {low:g} to {high:g}{note}{hint}"

    # ---- in TensorFlow

    def _is_missing(self, texts: tf.Tensor) -> tf.Tensor:
        return tf.reduce_any(texts[..., None] == tf.constant(list(self.p.missing)), axis=-1)

    def _encode_number(self, name: str, cells: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of raw cells, float32 [B]; `cells` are numbers, or texts of dates."""
        if name not in self._orders:
            return tf.cast(cells, tf.float32)
        order = self._orders[name]
        texts = tf.strings.strip(cells)
        is_missing = self._is_missing(texts)

        def part(group: int) -> tf.Tensor:
            text = tf.strings.regex_replace(texts, f"^{DATE_PATTERNS[order]}$", rf"\{group}")
            return tf.strings.to_number(tf.where(is_missing | (text == ""), "0", text), tf.int64)

        days = _days(*(part(group) for group in DATE_GROUPS[order]))
        seconds = 3600 * part(4) + 60 * part(5) + part(6)
        value = tf.cast(days, tf.float64) + tf.cast(seconds, tf.float64) / 86_400
        return tf.cast(tf.where(is_missing, np.float64("nan"), value), tf.float32)

    def _encode_categories(self, cells: tf.Tensor) -> tf.Tensor:
        """Returns the fingerprints of texts, string [B, T], as int32 [B, T, 2]."""
        texts = tf.strings.strip(cells)
        return tf.where(self._is_missing(texts)[..., None], MISSING, fingerprint(texts))


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
        if len(self.p.delimiter) != 1:
            raise ParamError(f"delimiter={self.p.delimiter!r} is not one character")

    def read_cells(self) -> Cells:
        place = place_of(self.p.file)
        files = list_files([place])
        if not files:
            raise DataError(f"no file matches {self.p.file}. {describe_place(place)}")
        return read_cells(files, self.p.delimiter)

    def describe(self) -> str:
        return self.p.file

    def unlabeled(self, path: str) -> Params:
        new = {"file": path, "label": None, "split": "all", "shuffle": False}
        return self.p.copy().set(**new, repeat=False, max_batches=None, augment=None)


def raw_names(columns: list[str]) -> dict[str, str]:
    """Returns the name of each column as an input of an exported program: an identifier.

    >>> raw_names(["age", "mean radius (mm)", "2024", "class"])
    {'age': 'age', 'mean radius (mm)': 'mean_radius_mm', '2024': 'column_2024', 'class': 'class_'}
    """
    names: dict[str, str] = {}
    for column in columns:
        name = re.sub(r"[^A-Za-z0-9]+", "_", column).strip("_")
        if not name or not name[0].isalpha():
            name = f"column_{name}".rstrip("_")
        if keyword.iskeyword(name):
            name += "_"
        same = 2
        while name in names.values():
            name = f"{name.rstrip('0123456789').rstrip('_')}_{same}"
            same += 1
        names[column] = name
    return names


def _texts(cells: np.ndarray) -> list[str]:
    """Returns the texts, without spaces around them, of bytes [B]."""
    return [bytes(cell).decode(errors="surrogateescape").strip() for cell in cells.tolist()]


def _days(year: tf.Tensor, month: tf.Tensor, day: tf.Tensor) -> tf.Tensor:
    """Returns the days since 1970 of dates of the Gregorian calendar, all int64 [B].

    A year begins on March 1 here, so that a leap day is the last day of its year. 400 years have
    146,097 days.
    """
    year = tf.where(month <= 2, year - 1, year)
    era, year_of_era = year // 400, year % 400
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + days - _EPOCH_DAYS
