"""Turns the cells of a table into arrays: on the host, and in TensorFlow for exported programs.

Both compute the same: an export is compared with its run through `ColumnEncoder.read_raw`.

Axes: B rows, N columns of numbers and dates, T columns of categories.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.data.files import DataError
from lingo.data.tables.cells import (
    DATE_EXAMPLES,
    DATE_GROUPS,
    DATE_PATTERNS,
    SPACES,
    DateOrder,
    parse_all,
)
from lingo.data.tables.column import CategoryColumn, DateColumn, NumberColumn
from lingo.ops.fingerprint import MISSING, fingerprint

_EPOCH_DAYS = 719_468  # from March 1 of the year 0 to 1970


class ColumnEncoder:
    """Encodes columns: `numbers` are N columns of numbers and dates, `categories` T columns.

    Raw cells are what a request to a served model has: numbers as numbers, and dates and categories
    as texts, under the names in `raw_names`, which are identifiers.
    """

    def __init__(
        self, columns: Mapping[str, Params], missing: Sequence[str], decimal: str = "."
    ) -> None:
        """`columns` are params of `Column` by name; `missing` are the cells of missing values.

        Raises ParamError for a `Column` that is none of numbers, dates or categories.
        """
        self._missing, self._decimal = tuple(missing), decimal
        self._whole_number = f"(-?[0-9]+)[{decimal}]0"
        self.categories: list[str] = []
        self.numbers: list[str] = []
        self.orders: dict[str, DateOrder] = {}
        for name, column in columns.items():
            if issubclass(column.cls, CategoryColumn):
                self.categories.append(name)
                continue
            self.numbers.append(name)
            if issubclass(column.cls, DateColumn):
                self.orders[name] = column.order
            elif not issubclass(column.cls, NumberColumn):
                raise ParamError(
                    f"columns[{name!r}] is a {column.cls.__name__}: give a NumberColumn, a"
                    " DateColumn or a CategoryColumn"
                )
        self.raw_names = make_identifiers(list(columns))

    # ---- on the host

    def parse(self, name: str, cells: Sequence[str]) -> tuple[np.ndarray, int | None]:
        """Parses the cells of a column of numbers or dates as `parse_all` does."""
        order, decimal = self.orders.get(name), self._decimal
        return parse_all(cells, self._missing, decimal=decimal, order=order)

    def fingerprints(self, cells: Sequence[str]) -> np.ndarray:
        """Returns the fingerprint of each cell of a column of categories, int32 [B, 2].

        A whole number and the same number with `.0`, as pandas has it in a column with missing
        values, are one category. Raises DataError if two categories have the same fingerprint.
        """
        whole = {cell: self._without_zero(cell) for cell in {*cells}}
        known = sorted({*whole.values()})
        with tf.device("CPU:0"):
            words = fingerprint(tf.constant([_to_bytes(text) for text in known], tf.string)).numpy()
        texts: dict[bytes, str] = {}
        for text, word in zip(known, words, strict=True):
            if (other := texts.setdefault(word.tobytes(), text)) != text:
                raise DataError(f"{other!r} and {text!r} have the same fingerprint: rename one.")
        table = dict(zip(known, words, strict=True))
        missing = dict.fromkeys(self._missing, np.full(2, MISSING, np.int32))
        table |= missing
        of_cell = {cell: table[text] for cell, text in whole.items()} | missing
        return np.stack([of_cell[cell] for cell in cells])

    def raw_specs(self) -> dict[str, tuple[tuple[int | None, ...], str]]:
        """Returns the shape and dtype of raw cells by raw name; B may vary (None)."""
        return {
            raw: ((None,), "float32" if self._is_number(name) else "string")
            for name, raw in self.raw_names.items()
        }

    def to_raw(self, columns: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
        """Returns raw cells by raw name, float32 [B] or bytes [B], from texts by column."""
        raw = {}
        for name, to in self.raw_names.items():
            if self._is_number(name):
                raw[to] = self.parse(name, columns[name])[0].astype(np.float32)
            else:
                raw[to] = np.array([_to_bytes(cell) for cell in columns[name]], np.bytes_)
        return raw

    def read_raw(self, raw: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the arrays that `encode_raw` computes, but computed on the host."""
        columns = {name: raw[to] for name, to in self.raw_names.items()}
        numbers = [
            columns[name] if self._is_number(name) else self.parse(name, _texts(columns[name]))[0]
            for name in self.numbers
        ]
        arrays = {}
        if numbers:
            arrays["numbers"] = np.stack(numbers, axis=-1).astype(np.float32)
        if self.categories:
            words = [self.fingerprints(_texts(columns[name])) for name in self.categories]
            arrays["categories"] = np.stack(words, axis=1)
        return arrays

    # ---- in TensorFlow

    def encode_raw(self, raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the arrays of a batch, `numbers` and `categories`, for raw cells by raw name.

        Raw cells are float32 [B], NaN where missing, or string [B]. The result is as in batches of
        `TableInput`. Computing it fails for a text that is no date, where a date is wanted.
        """
        columns = {name: raw[to] for name, to in self.raw_names.items()}
        arrays: dict[str, Any] = {}
        if self.numbers:
            values = [self._encode_number(name, columns[name]) for name in self.numbers]
            arrays["numbers"] = tf.stack(values, axis=-1)
        if self.categories:
            texts = tf.stack([columns[name] for name in self.categories], axis=-1)
            arrays["categories"] = self._encode_categories(texts)
        return arrays

    def _is_number(self, name: str) -> bool:
        return name not in self.categories and name not in self.orders

    def _without_zero(self, cell: str) -> str:
        """Returns "1" for the cell "1.0", and other cells as they are."""
        found = re.fullmatch(self._whole_number, cell)
        return found[1] if found else cell

    def _is_missing(self, texts: tf.Tensor) -> tf.Tensor:
        return tf.reduce_any(tf.equal(tf.expand_dims(texts, -1), list(self._missing)), axis=-1)

    def _encode_number(self, name: str, cells: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of raw cells, float32 [B]; `cells` are numbers, or texts of dates."""
        if name not in self.orders:
            return tf.cast(cells, tf.float32)
        texts = _strip(cells)
        is_missing = self._is_missing(texts)
        value, is_date = _parse_dates(texts, self.orders[name])
        with tf.control_dependencies([self._check_dates(name, texts, is_missing | is_date)]):
            return tf.cast(tf.where(is_missing, np.float64("nan"), value), tf.float32)

    def _check_dates(self, name: str, texts: tf.Tensor, is_right: tf.Tensor) -> tf.Operation | None:
        """Returns an operation that fails with the first text that is not right, bool [B]."""
        order = self.orders[name]
        wrong = tf.boolean_mask(texts, tf.logical_not(is_right))
        first = tf.strings.reduce_join(tf.strings.substr(wrong[:1], 0, 60))
        wanted = f"` is no date such as {DATE_EXAMPLES[order]} or {DATE_EXAMPLES[order]} 12:30."
        message = tf.strings.join([f"column `{name}`: `", first, wanted])  # TF escapes quotes
        return tf.debugging.Assert(tf.reduce_all(is_right), [message])

    def _encode_categories(self, cells: tf.Tensor) -> tf.Tensor:
        """Returns the fingerprints of texts, string [B, T], as int32 [B, T, 2]."""
        texts = _strip(cells)
        whole = tf.strings.regex_replace(texts, f"^{self._whole_number}$", r"\1")
        is_missing = self._is_missing(texts) | self._is_missing(whole)
        return tf.where(tf.expand_dims(is_missing, -1), MISSING, fingerprint(whole))


def make_identifiers(columns: Sequence[str]) -> dict[str, str]:
    """Returns an identifier for each column, since exported programs name their inputs by them.

    >>> make_identifiers(["age", "mean radius (mm)", "2024", "class"])
    {'age': 'age', 'mean radius (mm)': 'mean_radius_mm', '2024': 'column_2024', 'class': 'class_'}
    """
    names: dict[str, str] = {}
    for column in columns:
        name = re.sub(r"[^A-Za-z0-9]+", "_", column).strip("_")
        if not name or not name[0].isalpha():
            name = f"column_{name}".rstrip("_")
        if keyword.iskeyword(name):
            name += "_"
        unique, number = name, 2
        while unique in names.values():
            unique, number = f"{name}_{number}", number + 1
        names[column] = unique
    return names


def _to_bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _texts(cells: np.ndarray) -> list[str]:
    """Decodes bytes, [B], to texts, and strips the spaces around each text."""
    return [bytes(cell).decode(errors="surrogateescape").strip(SPACES) for cell in cells.tolist()]


def _strip(texts: tf.Tensor) -> tf.Tensor:
    """Strips the spaces around each text; `tf.strings.strip` knows the spaces of ASCII only."""
    return tf.strings.regex_replace(texts, f"^[{SPACES}]+|[{SPACES}]+$", "")


def _parse_dates(texts: tf.Tensor, order: DateOrder) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the days since 1970 of texts, float64 [B], and whether they are dates, bool [B]."""
    is_formed = tf.strings.regex_full_match(texts, DATE_PATTERNS[order])

    def part(group: int) -> tf.Tensor:
        text = tf.strings.regex_replace(texts, f"^{DATE_PATTERNS[order]}$", rf"\{group}")
        is_present = is_formed & tf.not_equal(text, "")
        return tf.strings.to_number(tf.where(is_present, text, "0"), tf.int64)

    year, month, day = (part(group) for group in DATE_GROUPS[order])
    hour, minute, second = (part(group) for group in (4, 5, 6))
    first = _days(year, month, tf.ones_like(day))
    length = _days(year, month + 1, tf.ones_like(day)) - first  # month 13 is the next January
    is_date = is_formed & (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= length)
    is_date &= (hour < 24) & (minute < 60) & (second < 60)
    seconds = 3600 * hour + 60 * minute + second
    value = tf.cast(first + day - 1, tf.float64) + tf.cast(seconds, tf.float64) / 86_400
    return value, is_date


def _days(year: Any, month: Any, day: Any) -> Any:
    """Returns the days since 1970 of dates of the Gregorian calendar, all int64 [B].

    The month is 1 to 13; month 13 is January of the next year. A year begins on March 1 here, so
    that a leap day is the last day of its year. 400 years have 146,097 days.
    """
    year = tf.where(month <= 2, year - 1, year)
    era, year_of_era = year // 400, year % 400
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + days - _EPOCH_DAYS
