"""Reads the cells of tables: CSV files as spreadsheets write them, and Parquet files.

Axes: R rows of a table.
"""

from __future__ import annotations

import csv
import datetime
import functools
import importlib
import io
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from lingo.config.base.errors import check_package
from lingo.data.files import DataError, File, refuse_compressed, refuse_empty

DateOrder = Literal["year_first", "day_first", "month_first"]
"""The order of the parts of dates: 2024-01-31, 31.1.2024 or 1/31/2024. `-`, `.`, `/` part them."""

DELIMITERS = (",", ";", "\t", "|")

SPACES = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""The spaces of Unicode, which are stripped from cells, on the host and in TensorFlow."""

_YEAR, _PART = r"(\d{4})", r"(\d{1,2})"
_TIME = r"(?:[T ](\d{1,2}):(\d{2})(?::(\d{2}))?(?:\.\d+)?Z?)?"
DATE_PATTERNS: dict[DateOrder, str] = {
    "year_first": rf"{_YEAR}[-./]{_PART}[-./]{_PART}{_TIME}",
    "day_first": rf"{_PART}[-./]{_PART}[-./]{_YEAR}{_TIME}",
    "month_first": rf"{_PART}[-./]{_PART}[-./]{_YEAR}{_TIME}",
}
"""Patterns of dates, which Python and TensorFlow both read; a time of day (UTC) may follow."""

DATE_GROUPS: dict[DateOrder, tuple[int, int, int]] = {
    "year_first": (1, 2, 3),
    "day_first": (3, 2, 1),
    "month_first": (3, 1, 2),
}
"""The groups of year, month and day in `DATE_PATTERNS`; hour, minute, second are 4, 5 and 6."""

DATE_EXAMPLES: dict[DateOrder, str] = {
    "year_first": "2024-01-31",
    "day_first": "31.1.2024",
    "month_first": "1/31/2024",
}
"""January 31, 2024 in each order, for errors; a time of day such as 12:30 may follow."""

_EPOCH = datetime.date(1970, 1, 1).toordinal()
_DAY_SECONDS = 86_400
_DIGITS = frozenset("0123456789+-.eE")
_NUMBER = re.compile(r"[-+]?(\d+([.]\d*)?|[.]\d+)([eE][-+]?\d+)?", re.ASCII)
_FORMATTED = re.compile(
    r"[-+(]?\s?[$\N{EURO SIGN}\N{POUND SIGN}\N{YEN SIGN}]?\s?"
    r"(\d{1,3}([,.'\s]\d{3})+|\d+)([.,]\d+)?"
    r"\s?[$\N{EURO SIGN}\N{POUND SIGN}\N{YEN SIGN}%)]?",
    re.ASCII,
)
_NUMBER_LIMIT = float(2**128 - 2**103)  # numbers from here on are infinite in float32
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # the column of an index without a name


class Cells(NamedTuple):
    """The cells of one or more files, as texts without the spaces around them."""

    columns: dict[str, list[str]]  # column -> its cells, [R]
    places: list[str]  # file and line of each row, [R], for messages

    def where(self, row: int, column: str) -> str:
        """Returns the place of a cell for an error."""
        return f"{self.places[row]}, column {column!r}"


@functools.lru_cache(maxsize=1)  # for inference, and the inputs of several splits
def read_cells(files: tuple[File, ...], delimiter: str) -> Cells:
    """Reads the cells of some files, one after the other; the first file decides the columns.

    Callers share the result, so they must not change it. Raises DataError for a file that cannot be
    read, or lacks a column of the first file.
    """
    whole: Cells | None = None
    for file in files:
        cells = _read_file(file, delimiter)
        if whole is None:
            whole = cells
            continue
        for column, values in whole.columns.items():
            if column not in cells.columns:
                raise DataError(f"{file.path} lacks the column {column!r} of {files[0].path}.")
            values += cells.columns[column]
        whole.places.extend(cells.places)
    if whole is None:
        raise DataError("there is no file.")
    return whole


def find_delimiter(file: File) -> str:
    """Returns the delimiter that splits a CSV file's first line into the most cells."""
    if is_parquet(file):
        return DELIMITERS[0]
    head = _decode(file).partition("\n")[0]
    return max(DELIMITERS, key=lambda mark: len(next(csv.reader([head], delimiter=mark), [])))


def is_parquet(file: File) -> bool:
    """Returns whether a file is read as Parquet, by its extension."""
    return file.path.lower().endswith((".parquet", ".pq"))


def _read_file(file: File, delimiter: str) -> Cells:
    refuse_empty(file)
    return _read_parquet(file) if is_parquet(file) else _read_csv(file, delimiter)


# ---- CSV -----------------------------------------------------------------------------------------


def _decode(file: File) -> str:
    """Returns the text of a file in UTF-8, with or without a byte order mark."""
    with file.open() as read:
        refuse_compressed(file, read)
        data = read(0, file.size)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(
            f"{file.path}, line {line} is not in UTF-8: save the file as 'CSV UTF-8', or convert it"
            " by iconv."
        ) from None


def _read_csv(file: File, delimiter: str) -> Cells:
    reader = csv.reader(io.StringIO(_decode(file), newline=""), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    rows: list[list[str]] = []
    lines: list[int] = []
    line = 1  # the first line of the next row, which may have line breaks in quotes
    try:
        for cells in reader:
            if names is None:
                names = [cell.strip() for cell in cells]
            elif not any(map(str.strip, cells)):
                pass  # spreadsheets end files with lines of empty cells
            elif len(cells) == len(names):
                rows.append(cells)
                lines.append(line)
            else:
                raise DataError(
                    f"{file.path}, line {line} has {len(cells)} cells, but the first line has"
                    f" {len(names)}: put cells with {delimiter!r} in quotes, and fill up short"
                    " rows."
                )
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{file.path}, line {line} cannot be read: {error}.") from None
    columns = [[cell.strip(SPACES) for cell in column] for column in zip(*rows, strict=True)]
    columns = columns or [[] for _ in names or ()]
    named = _name_columns(file, names or [], columns)
    return Cells(named, [f"{file.path}, line {number}" for number in lines])


def _name_columns(
    file: File, names: Sequence[str], columns: Sequence[list[str]]
) -> dict[str, list[str]]:
    """Returns column -> cells, without columns that have neither a name nor a cell."""
    named: dict[str, list[str]] = {}
    for i, (name, cells) in enumerate(zip(names, columns, strict=True)):
        if not name:
            if any(cells):
                raise DataError(f"{file.path}: column {i + 1} has no name in the first line.")
            continue
        if name in named:
            raise DataError(f"{file.path} has two columns {name!r}: rename one.")
        named[name] = cells
    if named and all(map(_NUMBER.fullmatch, named)):
        raise DataError(f"{file.path}: the first line has numbers, but it needs names of columns.")
    if not named:
        raise DataError(f"{file.path} has no names of columns in its first line.")
    return named


# ---- Parquet -------------------------------------------------------------------------------------


def _read_parquet(file: File) -> Cells:
    check_package("pyarrow", "A Parquet file", extra="parquet")
    arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
    with file.open_stream() as stream:
        try:
            table = parquet.read_table(stream)
        except (arrow.ArrowException, OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(f"{file.path} cannot be read as Parquet: {reason}.") from None
    columns = {
        name: [to_cell(value) for value in table.column(name).to_pylist()]
        for name in table.column_names
        if not _PANDAS_INDEX.fullmatch(name)
    }
    return Cells(columns, [f"{file.path}, row {i}" for i in range(table.num_rows)])


def to_cell(value: object, decimal: str = ".") -> str:
    """Returns a value, as Parquet, NumPy and pandas have it, as the text of a cell.

    >>> to_cell(1.5, ","), to_cell(float("nan")), to_cell(datetime.datetime(2024, 1, 31, 12, 30))
    ('1,5', '', '2024-01-31 12:30:00')
    """
    if isinstance(value, np.generic):
        value = value.item()
    if type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return ""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return "" if value != value else repr(value).replace(".", decimal)
        case datetime.datetime():
            if value.tzinfo is not None:
                value = value.astimezone(datetime.UTC)
            return value.replace(tzinfo=None).isoformat(sep=" ")
        case bytes():
            return value.decode(errors="replace").strip(SPACES)
    return str(value).strip(SPACES)


# ---- values of cells -----------------------------------------------------------------------------


def looks_formatted(cells: Iterable[str]) -> bool:
    """Returns whether most cells are numbers with thousands separators, a unit of money or a `%`.

    >>> looks_formatted(["13,950.0", "1 200", "$7"]), looks_formatted(["12 %"])
    (True, True)
    >>> looks_formatted(["7"]), looks_formatted(["A4", "B5"]), looks_formatted([])
    (False, False, False)
    """
    kinds = [bool(_FORMATTED.fullmatch(cell)) for cell in cells if not _NUMBER.fullmatch(cell)]
    return 2 * sum(kinds) > len(kinds)


def parse_number(cell: str, decimal: str = ".") -> float | None:
    """Returns a cell's number; None if it is no number, or infinite in float32.

    `decimal` is the decimal mark.

    >>> parse_number("-1.5e3"), parse_number("0,5", ","), parse_number("1_000"), parse_number("inf")
    (-1500.0, 0.5, None, None)
    """
    if decimal != ".":
        if "." in cell:
            return None
        cell = cell.replace(decimal, ".")
    if not _NUMBER.fullmatch(cell):
        return None
    number = float(cell)
    return number if abs(number) < _NUMBER_LIMIT else None


def parse_date(cell: str, order: DateOrder) -> float | None:
    """Returns a cell's date and time (UTC) as days since 1970; None if it is no date.

    >>> parse_date("1970-01-02", "year_first"), parse_date("31.1.1970 12:00", "day_first")
    (1.0, 30.5)
    """
    match = re.fullmatch(DATE_PATTERNS[order], cell, re.ASCII)
    if match is None:
        return None
    year, month, day = (int(match[group]) for group in DATE_GROUPS[order])
    hour, minute, second = (int(match[group] or 0) for group in (4, 5, 6))
    try:
        date, time = datetime.date(year, month, day), datetime.time(hour, minute, second)
    except ValueError:
        return None
    seconds = time.hour * 3600 + time.minute * 60 + time.second
    return date.toordinal() - _EPOCH + seconds / _DAY_SECONDS


def parse_all(
    cells: Iterable[str],
    missing: Collection[str],
    *,
    decimal: str = ".",
    order: DateOrder | None = None,
) -> tuple[np.ndarray, int | None]:
    """Parses the cells of a column of numbers, or with `order` of dates.

    Returns the values, float64 [R] with NaN for missing cells, and the index of the first cell that
    is neither missing nor parsed; None: there is no such cell.
    """
    cells = list(cells)
    if order is None and decimal == "." and (numbers := _parse_plain(cells, missing)) is not None:
        return numbers, None
    values: list[float] = []
    known: dict[str, float | None] = dict.fromkeys(missing, np.nan)
    wrong = None
    for i, cell in enumerate(cells):
        if cell not in known:
            known[cell] = parse_date(cell, order) if order else parse_number(cell, decimal)
        value = known[cell]
        if value is None:
            wrong = i if wrong is None else wrong
            value = np.nan
        values.append(value)
    return np.array(values, np.float64), wrong


def _parse_plain(cells: Sequence[str], missing: Collection[str]) -> np.ndarray | None:
    """Returns what `parse_all` does, four times as fast; None if a cell is no plain number."""
    absent = set(missing)
    present = [cell for cell in cells if cell not in absent]
    if not set("".join(present)) <= _DIGITS:  # `float` reads more: inf, 1_000
        return None
    try:
        values = [np.nan if cell in absent else float(cell) for cell in cells]
    except ValueError:
        return None
    numbers = np.array(values, np.float64)
    return None if (np.abs(numbers) >= _NUMBER_LIMIT).any() else numbers
