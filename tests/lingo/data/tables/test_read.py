"""The meaning of columns is inferred from all rows, and may be set by hand."""

from __future__ import annotations

import pathlib

import pytest

from lingo.config.params import ParamError, Params
from lingo.data import CategoryColumn, DateColumn, NumberColumn, read_table
from lingo.data.files import DataError


def table(folder: pathlib.Path, text: str, **options) -> Params:
    (folder / "t.csv").write_text(text)
    return read_table(folder / "t.csv", **options)


def kinds(params: Params) -> dict[str, type]:
    return {name: column.cls for name, column in params.columns.items()}


def test_numbers_dates_and_categories_are_told_apart(tmp_path) -> None:
    rows = [
        f"{i},{i / 7},2024-01-{i % 28 + 1:02},{'ab'[i % 2]},{'NA' if i % 3 else i % 2},,note {i},k"
        for i in range(60)
    ]
    head = "id,share,day,job,flag,empty,text,label"
    params = table(tmp_path, "\n".join([head, *rows]))
    assert kinds(params) == {
        "id": NumberColumn,
        "share": NumberColumn,
        "day": DateColumn,
        "job": CategoryColumn,
        "flag": NumberColumn,
        "label": CategoryColumn,
    }
    assert params.columns["job"].num_values == 2
    assert params.columns["day"].order == "year_first"


@pytest.mark.parametrize(
    ("cells", "order"),
    [
        ("31.1.2024\n1.2.2024", "day_first"),
        ("1/31/2024\n2/1/2024", "month_first"),
        ("2024/1/31\n2024-02-01 10:30", "year_first"),
    ],
)
def test_the_order_of_dates_is_found(tmp_path, cells: str, order: str) -> None:
    assert table(tmp_path, f"day\n{cells}\n").columns["day"].order == order


def test_dates_of_two_orders_are_refused_until_one_is_named(tmp_path) -> None:
    text = "day,x\nNA,1\n3.4.2024,1\n1.2.2024,2\n"
    with pytest.raises(
        DataError,
        match=r"line 3, column 'day': '3\.4\.2024' may be day_first or month_first\. Say which",
    ):
        table(tmp_path, text)
    day = DateColumn.params(order="month_first")
    assert table(tmp_path, text, columns={"day": day}).columns["day"].order == "month_first"


def test_the_label_column_decides_between_classes_and_a_number(tmp_path) -> None:
    text = "x,word,digit,real\n" + "".join(
        f"{i},{'ba'[i % 2]},{[10, 9, 2][i % 3]},{i / 3}\n" for i in range(30)
    )
    assert table(tmp_path, text, label="word").classes == ("a", "b")
    assert table(tmp_path, text, label="digit").classes == ("2", "9", "10")
    assert table(tmp_path, text, label="digit", predict="number").classes == ()
    assert table(tmp_path, text, label="real").classes == ()
    assert len(table(tmp_path, text, label="real", predict="class").classes) == 30
    assert "word" not in table(tmp_path, text, label="word").columns
    with pytest.raises(DataError, match=r"the label 'word' has a cell '[ab]': no number"):
        table(tmp_path, text, label="word", predict="number")


def test_columns_may_be_ignored_or_given(tmp_path) -> None:
    text = "id,zip,y\n" + "".join(f"{i},{8000 + i % 3},{i % 2}\n" for i in range(9))
    zip_code = CategoryColumn.params(num_values=3)
    params = table(tmp_path, text, label="y", ignore=["id"], columns={"zip": zip_code})
    assert kinds(params) == {"zip": CategoryColumn}
    with pytest.raises(ParamError, match="has no column '': it has id, zip, y"):
        table(tmp_path, text, label="")
    for wrong in ({"label": "z"}, {"ignore": ["z"]}, {"columns": {"z": zip_code}}):
        with pytest.raises(ParamError, match=r"has no column 'z': it has id, zip, y"):
            table(tmp_path, text, **wrong)


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_a_decimal_comma_is_found(tmp_path, mark: str) -> None:
    params = table(tmp_path, "a;b\n1,5;x, y\n2;z\n-0,25;z\n".replace(";", mark))
    assert (params.delimiter, params.decimal) == (mark, ",")
    assert kinds(params) == {"a": NumberColumn, "b": CategoryColumn}
    data = params.set(batch_size=3, repeat=False, shuffle=False).build()
    assert data.batch(0)["numbers"][:, 0].tolist() == [1.5, 2, -0.25]


def test_columns_with_two_decimal_marks_are_refused_until_one_is_named(tmp_path) -> None:
    text = "a;b;c\n1,250;1.5;x\n2;3;y\n"
    error = "column 'a' has numbers with a decimal comma, but column 'b' with a decimal point"
    for options in ({}, {"columns": {"b": NumberColumn}}, {"label": "b"}):
        with pytest.raises(DataError, match=error):
            table(tmp_path, text, **options)
    category = CategoryColumn.params(num_values=2)
    for options in (
        {"decimal": ","},
        {"ignore": ["b"]},
        {"columns": {"b": category}},
        {"label": "b", "predict": "class"},
    ):
        params = table(tmp_path, text, **options)
        assert (params.decimal, params.columns["a"].cls) == (",", NumberColumn)
    params = table(tmp_path, text, columns={"a": category})
    assert (params.decimal, params.columns["b"].cls) == (".", NumberColumn)


def test_a_delimiter_and_a_decimal_mark_that_are_given_are_used(tmp_path) -> None:
    params = table(tmp_path, 'a,b\n"0,5",1\n"1,5",2\n', decimal=",")
    assert (params.delimiter, params.decimal) == (",", ",")
    assert kinds(params) == {"a": NumberColumn, "b": NumberColumn}
    points = table(tmp_path, "a;b\n1,5;2\n", decimal=".")
    assert kinds(points) == {"a": CategoryColumn, "b": NumberColumn}
    pipes = table(tmp_path, "a,b|c,d,e\n1|2\n", delimiter="|")
    assert (pipes.delimiter, *pipes.columns) == ("|", "a,b", "c,d,e")
    with pytest.raises(ParamError, match="delimiter='::' is not one character"):
        table(tmp_path, "a::b\n1::2\n", delimiter="::")


def test_what_cannot_be_a_table_is_refused(tmp_path) -> None:
    with pytest.raises(DataError, match=r"no file matches .*none\.csv"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(DataError, match="has no rows"):
        table(tmp_path, "a,b\n")
    with pytest.raises(DataError, match="no column with numbers, dates or categories"):
        table(tmp_path, "y,z\n1,\n2,\n", label="y")
    many = "".join(f"{i},name {i}\n" for i in range(1001))
    with pytest.raises(DataError, match="the label 'y' has 1,001 classes: at most 1,000"):
        table(tmp_path, f"x,y\n{many}", label="y")
    with pytest.raises(DataError, match="the label 'y' has 1 classes: at least 2"):
        table(tmp_path, "x,y\n1,a\n2,a\n", label="y")


def test_inference_reads_all_rows(tmp_path) -> None:
    rows = "".join(f"{i}\n" for i in range(5000))
    assert kinds(table(tmp_path, f"x\n{rows}")) == {"x": NumberColumn}
    mixed = table(tmp_path, "x\n" + "1\n" * 5000 + "none\n")
    assert kinds(mixed) == {"x": CategoryColumn}
    assert mixed.columns["x"].num_values == 2
