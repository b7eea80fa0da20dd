"""TensorFlow encodes raw cells as the host does, so that an export computes what its run does."""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data import CategoryColumn, DateColumn, NumberColumn, TableInput, read_table
from lingo.data.files import DataError
from lingo.data.tables import encoder
from lingo.data.tables.cells import DATE_EXAMPLES, SPACES, DateOrder, parse_date
from lingo.data.tables.column import Column
from lingo.data.tables.encoder import ColumnEncoder, make_identifiers
from tests.lingo.data.tables.test_table_input import TEXT


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "t.csv"
    path.write_text(TEXT)
    return path


def read(file: pathlib.Path, **fields: Any) -> TableInput:
    fields = {"batch_size": 4, "repeat": False, "shuffle": False, "label": "sort"} | fields
    return read_table(file, **fields).build()


def test_tensorflow_encodes_raw_cells_as_the_host_does(file) -> None:
    data = read(file)
    raw = data.raw_examples(np.arange(4))
    assert {n: ((None,), "float32" if v.dtype == "f" else "string") for n, v in raw.items()} == (
        data.encoder.raw_specs()
    )
    encoded = tf.function(data.encoder.encode_raw, autograph=False)(
        {name: tf.constant(value) for name, value in raw.items()}
    )
    host, batch = data.encoder.read_raw(raw), data.batch(0)
    for name in ("numbers", "categories"):
        np.testing.assert_array_equal(encoded[name].numpy(), host[name])
        np.testing.assert_array_equal(batch[name], host[name])


@pytest.mark.parametrize("order", ["year_first", "day_first", "month_first"])
def test_tensorflow_reads_dates_of_four_centuries(tmp_path, order) -> None:
    days = np.arange(-80_000, 80_000, 37)
    dates = [np.datetime64(int(day), "D").item() for day in days]
    forms = {
        "year_first": "{0.year:04}-{0.month}-{0.day:02}",
        "day_first": "{0.day}.{0.month:02}.{0.year:04} 06:00",
        "month_first": "{0.month}/{0.day}/{0.year:04} 6:00:00",
    }
    file = tmp_path / "d.csv"
    file.write_text("\n".join(["day", *(forms[order].format(date) for date in dates)]))
    columns = {"day": DateColumn.params(order=order)}
    data = read(file, columns=columns, label=None, batch_size=len(days))
    raw = {k: tf.constant(v) for k, v in data.raw_examples(np.arange(len(days))).items()}
    expected = (days + (0.0 if order == "year_first" else 0.25)).astype("f")
    np.testing.assert_array_equal(data.batch(0)["numbers"][:, 0], expected)
    np.testing.assert_array_equal(data.encoder.encode_raw(raw)["numbers"][:, 0], expected)


WRONG_DATES = {
    "year_first": (
        *("20240131", "2023-02-29", "1900-02-29", "2024-04-31", "2024-00-10", "2024-13-01"),
        *("0000-01-01", "2024-01-00", "2024-01-01 24:00", "2024-01-01 1:60", "2024-01-01 1:00:60"),
    ),
    "day_first": ("soon", "31.02.2024", "99.99.2024 77:88", "2024-01-31", ""),
    "month_first": ("31/1/2024", "2/30/2024", "1/31/24"),
}


@pytest.mark.parametrize(
    ("order", "cell"), [(order, cell) for order, cells in WRONG_DATES.items() for cell in cells]
)
def test_a_raw_cell_that_is_no_date_is_refused(order: DateOrder, cell: str) -> None:
    days = ColumnEncoder({"last day": DateColumn.params(order=order)}, missing=["NA"])
    encode = tf.function(days.encode_raw, autograph=False)
    right = DATE_EXAMPLES[order]
    first = encode({"last_day": tf.constant([right, "NA", f"{right} 23:59:59"])})["numbers"]
    assert first.numpy()[0] == parse_date(right, order)
    assert parse_date(cell, order) is None
    error = f"column `last day`: `{cell}` is no date such as {right} or {right} 12:30."
    for compute in (encode, days.encode_raw):
        with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(error)):
            compute({"last_day": tf.constant([right, cell, "soon"])})


@pytest.mark.parametrize("year", [4, 1900, 2000, 2023, 2024])
def test_tensorflow_accepts_the_dates_that_the_host_accepts(year: int) -> None:
    cells = [f"{year:04}-{month}-{day}" for month in range(14) for day in range(33)]
    found = encoder._parse_dates(tf.constant(cells), "year_first")
    for cell, value, is_date in zip(cells, *(array.numpy() for array in found), strict=True):
        assert (value if is_date else None) == parse_date(cell, "year_first"), cell


class Deadline(DateColumn):
    """A date of another class."""


class Price(NumberColumn):
    """A number of another class."""


class Color(Column):
    """A column that no encoder reads."""


def test_subclasses_of_columns_are_read_as_their_base_and_others_are_refused() -> None:
    columns = {"a": Price.params(), "b": Deadline.params(order="day_first")}
    own = ColumnEncoder(columns, missing=[])
    assert (own.numbers, own.orders, own.categories) == (["a", "b"], {"b": "day_first"}, [])
    with pytest.raises(ParamError, match=r"columns\['c'\] is a Color: give a NumberColumn"):
        ColumnEncoder(columns | {"c": Color.params()}, missing=[])


def test_the_same_spaces_are_stripped_on_the_host_and_in_tensorflow() -> None:
    columns = {"job": CategoryColumn.params(num_values=2), "day": DateColumn.params()}
    jobs = ColumnEncoder(columns, missing=["NA"])
    cells = [" nurse ", "nurse\u00a0", "\u00a0NA", "\u3000a \u2003b\x1f\n", " \u00a0", "größe"]
    days = ["\u00a01970-01-02 ", "1970-01-02", "\u00a0NA\u00a0", "NA ", "NA", "NA"]
    raw = {n: np.array([c.encode() for c in v]) for n, v in {"job": cells, "day": days}.items()}
    host = jobs.read_raw(raw)
    encoded = jobs.encode_raw({name: tf.constant(array) for name, array in raw.items()})
    expected = jobs.fingerprints(["nurse", "nurse", "NA", "a \u2003b", "", "größe"])
    np.testing.assert_array_equal(encoded["categories"][:, 0], expected)
    np.testing.assert_array_equal(host["categories"][:, 0], expected)
    np.testing.assert_array_equal(encoded["numbers"][:, 0], [1, 1, *[np.nan] * 4])
    np.testing.assert_array_equal(host["numbers"], encoded["numbers"])


@pytest.mark.parametrize("decimal", [".", ","])
def test_a_whole_number_is_one_category_with_and_without_a_zero_after_it(decimal: str) -> None:
    rooms = ColumnEncoder({"room": CategoryColumn.params(num_values=4)}, ["", "-9"], decimal)
    cells = ["1", "1.0", "-12", "-12.0", "1.00", "1.5", "v1.0", "-9", "-9.0", ""]
    cells = [cell.replace(".", decimal) for cell in cells]
    words = rooms.fingerprints(cells)
    found = rooms.encode_raw({"room": tf.constant([cell.encode() for cell in cells])})
    np.testing.assert_array_equal(found["categories"][:, 0], words)
    one, same, twelve, same_twelve, *others = map(tuple, words.tolist())
    assert one == same
    assert twelve == same_twelve
    assert len({one, twelve, *others}) == 6, "1.00, 1.5 and v1.0 are others; three are missing"


def test_spaces_are_the_ones_of_unicode() -> None:
    assert {*SPACES} == {c for c in map(chr, range(sys.maxunicode)) if c.isspace()}


def test_names_of_raw_inputs_are_identifiers_and_differ() -> None:
    columns = ["größe", "a b", "a-b", "a_b", "9", "ok", "for", "_x", "%"]
    names = list(make_identifiers(columns).values())
    assert names == ["gr_e", "a_b", "a_b_2", "a_b_3", "column_9", "ok", "for_", "x", "column"]
    assert len({*names}) == len(columns)


def test_two_categories_with_one_fingerprint_are_refused(file, monkeypatch) -> None:
    def same(texts: tf.Tensor) -> tf.Tensor:
        return tf.ones([*texts.shape, 2], tf.int32)

    monkeypatch.setattr(encoder, "fingerprint", same)
    with pytest.raises(DataError, match="have the same fingerprint: rename one"):
        read(file).prepare()
