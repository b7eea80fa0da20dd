"""Files of examples hold what was written, whole or not at all; a damaged one is told in a line."""

import csv
import json
import os
import re

import numpy as np
import pytest

from lingo.config.base.errors import ParamError
from lingo.storage.examples import read_examples, write_examples
from lingo.storage.files import StorageError

DRAW = np.random.default_rng(0)
BATCHES = [
    {
        "logits": DRAW.normal(size=[size, 2, 3]).astype("f"),
        "labels": DRAW.integers(0, 9, size).astype("i"),
        "is_large": DRAW.random([size, 1]) > 0.5,
    }
    for size in (4, 4, 1, 0)
]


def write(path, batches):
    with write_examples(path) as add:
        for batch in batches:
            add(batch)


@pytest.mark.parametrize("name", ["x.npz", "x.jsonl"])
def test_what_is_written_is_read(tmp_path, name):
    write(tmp_path / name, BATCHES)
    found = read_examples(tmp_path / name)
    assert found.keys() == BATCHES[0].keys()
    for key, array in found.items():
        np.testing.assert_array_equal(array, np.concatenate([batch[key] for batch in BATCHES]))
    assert os.listdir(tmp_path) == [name]


def test_numpy_reads_an_archive_and_any_program_the_lines(tmp_path):
    batch = {"x": np.array([[1.5, np.nan], [-np.inf, 2.0]], "f"), "n": np.array([7, 8])}
    for name in ("x.npz", "x.jsonl"):
        write(tmp_path / name, [batch])
    with np.load(tmp_path / "x.npz") as archive:
        assert {name: array.dtype.name for name, array in archive.items()} == {
            "x": "float32", "n": "int64"
        }  # fmt: skip
        np.testing.assert_array_equal(archive["x"], batch["x"])
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert rows == [{"x": [1.5, None], "n": 7}, {"x": [None, 2.0], "n": 8}]
    found = read_examples(tmp_path / "x.jsonl")
    np.testing.assert_array_equal(found["x"], [[1.5, np.nan], [np.nan, 2.0]])


@pytest.mark.parametrize("name", ["x.npz", "x.jsonl"])
def test_after_an_error_there_is_no_file(tmp_path, name):
    def some():
        yield BATCHES[0]
        raise TimeoutError

    with pytest.raises(TimeoutError):
        write(tmp_path / name, some())
    assert os.listdir(tmp_path) == []
    with pytest.raises(StorageError, match="No such file"):
        write(tmp_path / "nowhere" / name, BATCHES)


def test_examples_of_several_shapes_go_into_lines_and_not_into_arrays(tmp_path):
    batches = [{"x": np.zeros([2, size])} for size in (3, 4)]
    with pytest.raises(ParamError, match=r"examples of shapes \[3\] and \[4\], .*: write \.jsonl"):
        write(tmp_path / "x.npz", batches)
    write(tmp_path / "x.jsonl", batches)
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"", "x.csv: a file of examples ends in .npz or .jsonl"),
        ("x.npz", None, "x.npz cannot be read: No such file or directory"),
        ("x.npz", b"PK garbage", "x.npz cannot be read: "),
        ("x.npz", b"", "x.npz cannot be read: "),
        ("x.jsonl", b"{}\n{", "line 2 is not JSON"),
        ("x.jsonl", b"\xff\n", "line 1 is not JSON"),
        ("x.jsonl", b"[1]\n", 'line 1 is not an example, {"name": numbers, ...}'),
        ("x.jsonl", b'{"x": 1}\n{"y": 1}\n', "line 2 has ['y'], but line 1 has ['x']"),
        (
            "x.jsonl",
            b'{"x": [1, 2]}\n{"x": [1]}\n',
            "'x' has shape [1] in line 2, but [2] in line 1",
        ),
        ("x.jsonl", b'{"x": [[1], [1, 2]]}', "'x' in line 1 is neither a number nor a list"),
        ("x.jsonl", b'{"x": "text"}', "'x' in line 1 is neither a number nor a list"),
        ("x.jsonl", b'{"x": {"y": 1}}', "'x' in line 1 is neither a number nor a list"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_line(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ParamError, match=re.escape(message)):
        read_examples(tmp_path / name)


def test_nothing_is_unpickled(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([{}], object))
    np.save(tmp_path / "one.npy", np.zeros(3))
    os.rename(tmp_path / "one.npy", tmp_path / "one.npz")
    with pytest.raises(ParamError, match="is an array of Python objects"):
        read_examples(tmp_path / "x.npz")
    with pytest.raises(ParamError, match="it is not an archive of named arrays"):
        read_examples(tmp_path / "one.npz")


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"cannot write .*x\.npz: No space left"):
        write(tmp_path / "x.npz", BATCHES)
    assert os.listdir(tmp_path) == []


def test_texts_of_any_length_are_kept(tmp_path):
    batches = [{"file": np.array(["a"])}, {"file": np.array(["long, \u00e9.png", "b"])}]
    files = ["a", "long, \u00e9.png", "b"]
    write(tmp_path / "x.npz", batches)
    assert read_examples(tmp_path / "x.npz")["file"].tolist() == files
    write(tmp_path / "x.jsonl", batches)
    rows = (tmp_path / "x.jsonl").read_text().splitlines()
    assert [json.loads(row)["file"] for row in rows] == files


def test_a_table_has_the_arrays_with_one_value_for_each_example(tmp_path):
    batch = {
        "file": np.array(['a, "b".png', "c.png"]),
        "share": np.array([0.1, 1 / 3], "f"),
        "logits": np.zeros([2, 3]),
        "is_large": np.array([True, False]),
    }
    write(tmp_path / "x.csv", [batch, batch])
    text = (tmp_path / "x.csv").read_text()
    assert text.splitlines()[:2] == ["file,share,is_large", '"a, ""b"".png",0.1,True']
    with open(tmp_path / "x.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == ['a, "b".png', "c.png"] * 2
    assert np.float32(rows[1]["share"]) == batch["share"][1]


def test_a_table_without_a_column_of_predictions_is_refused(tmp_path):
    batch = {"example_id": np.arange(2), "tokens": np.zeros([2, 3], int)}
    with pytest.raises(ParamError, match=r"x\.csv: a table has one value .* in each of tokens:"):
        write(tmp_path / "x.csv", [batch])
    assert os.listdir(tmp_path) == []
