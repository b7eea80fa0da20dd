"""Infers what the columns of a table mean, once, so that a configuration holds the result."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args

from lingo.config.params import ParamError, Params
from lingo.data.files import DataError, describe_place, list_files, place_of
from lingo.data.tables.cells import (
    DELIMITERS,
    Cells,
    DateOrder,
    find_delimiter,
    parse_all,
    read_cells,
)
from lingo.data.tables.column import CategoryColumn, DateColumn, NumberColumn
from lingo.data.tables.table_input import MISSING_CELLS, CsvInput, Decimal, check_delimiter

Predict = Literal["auto", "class", "number"]
"""What a label column holds. "auto": classes, unless it has numbers that are not whole, or many."""

_MOST_NUMBERED_CLASSES = 20
_MOST_CATEGORIES = 1000
_FEW_ROWS = 20  # tables with fewer rows may well have no category twice


def read_table(
    file: str | os.PathLike[str],
    *,
    label: str | None = None,
    predict: Predict = "auto",
    columns: Mapping[str, Any] | None = None,
    ignore: Sequence[str] = (),
    missing: Sequence[str] = MISSING_CELLS,
    delimiter: str | None = None,
    decimal: Decimal | None = None,
    **fields: Any,
) -> Params:
    """Returns params of a CsvInput whose columns are inferred from all rows of a table.

    A column of numbers is a NumberColumn; a column of dates is a DateColumn; any other column is a
    CategoryColumn, with as many values as it has, but at most 1,000. A column without values is
    left out, and so is a column of texts that differ in almost all rows.

    Args:
        file: a CSV or Parquet file, or a glob of such files.
        label: the column to predict.
        predict: what the label column holds.
        columns: column -> `Column`, for columns whose meaning is not to be inferred.
        ignore: columns that are left out.
        missing: cells that are missing values.
        delimiter: the character between cells of CSV files; None: it is found in the first line.
        decimal: the decimal mark of numbers; None: it is found in the columns of numbers.
        **fields: further fields of the CsvInput, such as `batch_size`.

    Raises:
        DataError: if the file cannot be read, or the order of days and months or the decimal mark
            is not known.
        ParamError: if the file lacks a column that an argument names, or `delimiter` is not one
            character.
    """
    path = os.fspath(file)
    cells, delimiter = _read_files(path, delimiter)
    known = dict(columns or {})
    for name in (*known, *ignore, *([] if label is None else [label])):
        if name not in cells.columns:
            raise ParamError(f"{path} has no column {name!r}: it has {', '.join(cells.columns)}")
    if decimal is None:
        texts = {*ignore, *(name for name, c in known.items() if not _is_number(c))}
        if label is not None and predict == "class":
            texts.add(label)
        decimal = _find_decimal(cells, missing, texts) if delimiter != "," else "."
    inferred: dict[str, Any] = {}
    for name in cells.columns:
        if name == label or name in ignore:
            continue
        column = known.get(name) or infer_column(cells, name, missing, decimal=decimal)
        if column is not None:
            inferred[name] = column
    if not inferred:
        raise DataError(f"{path} has no column with numbers, dates or categories.")
    found: dict[str, Any] = {}
    if (delimiter, decimal) != (DELIMITERS[0], "."):
        found = {"delimiter": delimiter, "decimal": decimal}
    if tuple(missing) != MISSING_CELLS:
        found["missing"] = tuple(missing)
    if label is not None:
        found["classes"] = find_classes(cells, label, missing, predict, decimal=decimal)
    return CsvInput.params(file=path, label=label, columns=inferred, **{**found, **fields})


def _read_files(path: str, delimiter: str | None) -> tuple[Cells, str]:
    """Returns the cells of all files that match a path, and the delimiter of CSV files."""
    place = place_of(path)
    files = list_files([place])
    if not files:
        raise DataError(f"no file matches {path}. {describe_place(place)}")
    if delimiter is None:
        delimiter = find_delimiter(files[0])
    check_delimiter(delimiter)
    cells = read_cells(tuple(files), delimiter)
    if not cells.places:
        raise DataError(f"{path} has no rows.")
    return cells, delimiter


def infer_column(
    cells: Cells, name: str, missing: Sequence[str], *, decimal: str = "."
) -> Params | None:
    """Returns the `Column` that suits the cells of a column; None to leave the column out.

    Raises DataError if they are dates whose order of days and months is not known.
    """
    column, absent = cells.columns[name], set(missing)
    values = {cell for cell in column if cell not in absent}
    if not values:
        return None
    if parse_all(values, missing, decimal=decimal)[1] is None:
        return NumberColumn.params()
    orders: list[DateOrder] = [
        order for order in get_args(DateOrder) if parse_all(values, missing, order=order)[1] is None
    ]
    if len(orders) > 1:
        row = next(i for i, cell in enumerate(column) if cell in values)
        raise DataError(
            f"{cells.where(row, name)}: {column[row]!r} may be {' or '.join(orders)}. Say"
            f" which, as in columns={{{name!r}: DateColumn.params(order='day_first')}}."
        )
    if orders:
        return DateColumn.params(order=orders[0])
    num_present = sum(cell not in absent for cell in column)
    if num_present > _FEW_ROWS and len(values) > 0.9 * num_present:
        return None
    return CategoryColumn.params(num_values=min(len(values), _MOST_CATEGORIES))


def find_classes(
    cells: Cells, label: str, missing: Sequence[str], predict: Predict, *, decimal: str = "."
) -> tuple[str, ...]:
    """Returns the sorted classes of a label column; () if it has numbers.

    Raises DataError if it has fewer than two classes, or more than 1,000, or a cell that is no
    number where numbers are wanted.
    """
    values = {cell for cell in cells.columns[label] if cell not in set(missing)}
    numbers, wrong = parse_all(values, missing, decimal=decimal)
    are_whole = wrong is None and bool((numbers == numbers.round()).all())
    if predict == "auto":
        few = are_whole and len(values) <= _MOST_NUMBERED_CLASSES
        predict = "class" if wrong is not None or few else "number"
    if predict == "number":
        if wrong is not None:
            raise DataError(f"the label {label!r} has a cell {[*values][wrong]!r:.60}: no number.")
        return ()
    if len(values) < 2:
        raise DataError(f"the label {label!r} has {len(values)} classes: at least 2 are needed.")
    if len(values) > _MOST_CATEGORIES:
        raise DataError(
            f"the label {label!r} has {len(values):,} classes: at most {_MOST_CATEGORIES:,} can be"
            " told apart. Is it the right column?"
        )
    if are_whole:
        return tuple(sorted(values, key=lambda cell: (float(cell.replace(decimal, ".")), cell)))
    return tuple(sorted(values))


def _is_number(column: Any) -> bool:
    """Returns whether a `Column`, as params or as a class, has numbers."""
    return issubclass(column.cls if isinstance(column, Params) else column, NumberColumn)


def _find_decimal(cells: Cells, missing: Sequence[str], texts: Collection[str]) -> Decimal:
    """Returns the decimal mark of the columns but `texts`; "." if there is no mark.

    Raises DataError if one column has numbers only with a comma, and another one only with a point.
    """
    found: dict[Decimal, str] = {}
    for name, column in cells.columns.items():
        values = {*column}.difference(missing)
        for mark in get_args(Decimal) if name not in texts else ():
            has_mark = any(mark in cell for cell in values)
            if has_mark and parse_all(values, missing, decimal=mark)[1] is None:
                found.setdefault(mark, name)
    if len(found) > 1:
        raise DataError(
            f"column {found[',']!r} has numbers with a decimal comma, but column {found['.']!r}"
            " with a decimal point: write both with one mark, or give `decimal` to read one of them"
            " as categories."
        )
    return "," if "," in found else "."
