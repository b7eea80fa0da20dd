"""CSV files as spreadsheets write them are read; a mistake is named with its file and line."""

from __future__ import annotations

import datetime
import pathlib

import numpy as np
import pytest

from lingo.config.base import errors
from lingo.config.base.errors import MissingPackage
from lingo.data.files import DataError, list_files, place_of
from lingo.data.tables.cells import (
    Cells,
    find_delimiter,
    parse_all,
    parse_date,
    parse_number,
    read_cells,
)

MISSING = ("", "NA")


def tuple_of(places):
    return tuple(list_files(places))


def read(folder: pathlib.Path, content: str | bytes, delimiter: str = ",") -> Cells:
    file = folder / "t.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_cells(tuple_of([place_of(str(file))]), delimiter)


def test_a_mark_of_utf_8_windows_lines_and_quotes_are_no_part_of_cells(tmp_path) -> None:
    text = '\ufeffname,"size, cm"\r\n"Smith, ""Bo""",1\r\n"two\r\nlines", 2 \r\n\r\n,\r\nend,3'
    cells = read(tmp_path, text)
    assert cells.columns == {
        "name": ['Smith, "Bo"', "two\r\nlines", "end"],
        "size, cm": ["1", "2", "3"],
    }
    assert [place.rpartition(" ")[2] for place in cells.places] == ["2", "3", "7"]
    assert cells.where(1, "name") == f"{tmp_path}/t.csv, line 3, column 'name'"


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(tmp_path, mark: str) -> None:
    text = f'"a, b; c"{mark}d{mark}e\n1{mark}2{mark}3\n'
    cells = read(tmp_path, text, mark)
    assert find_delimiter(list_files([place_of(str(tmp_path / "t.csv"))])[0]) == mark
    assert list(cells.columns) == ["a, b; c", "d", "e"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("a,b\n1,2\n3\n", r"t\.csv, line 3 has 1 cells, but the first line has 2: put cells"),
        ('a,b\n"x\ny",2\n1,2,3\n', r"t\.csv, line 4 has 3 cells"),
        ('a,b\n1,"2\n', r"t\.csv, line 2 cannot be read: unexpected end of data"),
        (b"a,b\n1,\xe9\n", r"t\.csv, line 2 is not in UTF-8: save the file as 'CSV UTF-8'"),
        ("a,,b\n1,2,3\n", r"column 2 has no name in the first line"),
        ("a,b,a\n1,2,3\n", r"two columns 'a': rename one"),
        ("1.5,2\n3,4\n", r"the first line has numbers, but it needs names"),
        ("", r"t\.csv is empty"),
        ("\n\n", r"has no names of columns"),
        (b"\x1f\x8b\x08abc", r"is compressed by gzip"),
    ],
)
def test_a_mistake_is_named(tmp_path, content: str | bytes, error: str) -> None:
    with pytest.raises(DataError, match=error):
        read(tmp_path, content)


def test_columns_without_name_and_cells_are_dropped(tmp_path) -> None:
    assert read(tmp_path, "a,,\n1,,\n2, ,\n").columns == {"a": ["1", "2"]}


def test_files_of_a_glob_follow_each_other_and_need_the_columns_of_the_first(tmp_path) -> None:
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text("c,b,a\n9,4,3\n")
    files = tuple_of([place_of(str(tmp_path / "*.csv"))])
    cells = read_cells(files, ",")
    assert cells.columns == {"a": ["1", "3"], "b": ["2", "4"]}
    assert [place.rpartition("/")[2] for place in cells.places] == [
        "1.csv, line 2",
        "2.csv, line 2",
    ]
    (tmp_path / "2.csv").write_text("a\n1\n")
    with pytest.raises(DataError, match=r"2\.csv lacks the column 'b' of .*1\.csv"):
        read_cells(tuple_of([place_of(str(tmp_path / "*.csv"))]), ",")


def test_dates_are_days_since_1970() -> None:
    draw = np.random.RandomState(0)
    for day in draw.randint(-100_000, 100_000, 300).tolist():
        date = datetime.date(1970, 1, 1) + datetime.timedelta(days=day)
        assert parse_date(date.isoformat(), "year_first") == day
        assert parse_date(f"{date.day}.{date.month}.{date.year:04}", "day_first") == day
        assert parse_date(f"{date.month}/{date.day}/{date.year:04}", "month_first") == day
    assert parse_date("1970-01-01T06:00:00Z", "year_first") == 0.25
    for wrong in ("2024-02-30", "2024-13-01", "1.2.2024", "2024-01-01 25:00", "today", "2024"):
        assert parse_date(wrong, "year_first") is None


def test_numbers_have_one_decimal_mark_and_no_names() -> None:
    for cell in ("1", "-1", "+1.5", ".5", "5.", "1e-3", "1E3"):
        assert parse_number(cell) == float(cell)
    for cell in ("", "1 000", "1_000", "inf", "nan", "0x1", "1,5", "\u0661", "1e", "--1", "5%"):
        assert parse_number(cell) is None
    assert parse_number("-1,5", ",") == -1.5
    assert parse_number("1.5", ",") is None


@pytest.mark.parametrize("cell", ["1e999", "-1e999", "1e39", "3.4028236e38"])
def test_numbers_that_are_infinite_in_float32_are_none(cell: str) -> None:
    with np.errstate(over="ignore"):
        assert np.isinf(np.float32(cell))
    assert parse_number(cell) is None
    assert parse_number(cell.replace(".", ","), ",") is None
    assert parse_all(["1", "NA", cell], MISSING)[1] == 2
    largest = str(np.finfo(np.float32).max)
    assert np.float32(parse_number(largest)) == np.finfo(np.float32).max
    assert parse_all([largest, "NA"], MISSING)[1] is None


def test_the_first_cell_that_is_no_number_is_found() -> None:
    values, wrong = parse_all(["1", "NA", "x", "y", ""], MISSING)
    np.testing.assert_array_equal(values, [1, np.nan, np.nan, np.nan, np.nan])
    assert wrong == 2
    assert parse_all(["1", "NA"], MISSING)[1] is None


def test_parquet_without_its_package_names_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(errors.importlib.util, "find_spec", lambda name: None)
    file = tmp_path / "t.parquet"
    file.write_bytes(b"PAR1")
    with pytest.raises(MissingPackage, match=r"needs pyarrow.*pip install 'lingo-tf\[parquet\]'"):
        read_cells(tuple_of([place_of(str(file))]), ",")


def test_parquet_has_the_cells_of_the_csv_file(tmp_path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    from pyarrow import parquet

    table = arrow.table(
        {
            "n": [1, None, 3],
            "x": [0.5, float("nan"), 1e-3],
            "s": ["a", None, " b, c "],
            "d": [datetime.date(2024, 1, 31), None, datetime.date(1999, 12, 31)],
            "t": [datetime.datetime(2024, 1, 31, 6), None, datetime.datetime(1970, 1, 1)],
            "b": [True, False, None],
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    text = (
        "n,x,s,d,t,b\n1,0.5,a,2024-01-31,2024-01-31 06:00:00,true\n,,,,,false\n"
        '3,0.001,"b, c",1999-12-31,1970-01-01 00:00:00,\n'
    )
    files = tuple_of([place_of(str(tmp_path / "t.parquet"))])
    assert read_cells(files, ",").columns == read(tmp_path, text).columns
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(DataError, match=r"t\.parquet cannot be read as Parquet"):
        read_cells(tuple_of([place_of(str(tmp_path / "t.parquet"))]), ",")


def test_parquet_times_with_a_zone_become_utc(tmp_path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    from pyarrow import parquet

    zone = datetime.timezone(datetime.timedelta(hours=2))
    times = [datetime.datetime(2024, 1, 1, 1, tzinfo=zone), None]
    table = arrow.table({"t": arrow.array(times, arrow.timestamp("us", tz="+02:00"))})
    parquet.write_table(table, tmp_path / "t.parquet")
    cells = read_cells(tuple_of([place_of(str(tmp_path / "t.parquet"))]), ",")
    assert cells.columns == {"t": ["2023-12-31 23:00:00", ""]}


def test_the_index_of_a_data_frame_is_no_column(tmp_path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    from pyarrow import parquet

    columns = ("x", "__index_level_0__", "__index_level_12__", "my__index_level_0__")
    table = arrow.table({name: [3, 5] for name in columns})
    parquet.write_table(table, tmp_path / "t.parquet")
    cells = read_cells(tuple_of([place_of(str(tmp_path / "t.parquet"))]), ",")
    assert list(cells.columns) == ["x", "my__index_level_0__"]
