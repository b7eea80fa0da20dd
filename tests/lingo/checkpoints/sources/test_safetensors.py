"""Safetensors files, written here byte by byte: read exactly, or refused with what is wrong."""

from __future__ import annotations

import json
import os
import pathlib
import struct
from typing import Any

import numpy as np
import pytest

from lingo.checkpoints.sources.safetensors import (
    SafetensorsFile,
    SafetensorsShards,
    open_safetensors,
)
from lingo.checkpoints.sources.source import Tensor, UnusableSource

Header = dict[str, Any]


def entry(dtype: str, shape: list[int], begin: int, end: int) -> Header:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def packed(header: Header | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def written(path: pathlib.Path, header: Header | bytes, data: bytes = b"") -> pathlib.Path:
    path.write_bytes(packed(header, data))
    return path


@pytest.mark.parametrize(
    ("dtype", "data", "name", "values"),
    [
        ("F32", struct.pack("<2f", 1.5, -2), "float32", [1.5, -2]),
        ("F64", struct.pack("<2d", 1e300, -2), "float64", [1e300, -2]),
        ("F16", struct.pack("<2e", 1.5, -2), "float16", [1.5, -2]),
        ("BF16", b"\xc0\x3f\x00\xc0", "bfloat16", [1.5, -2]),
        ("I8", struct.pack("<2b", 1, -2), "int8", [1, -2]),
        ("I16", struct.pack("<2h", 1, -2), "int16", [1, -2]),
        ("I32", struct.pack("<2i", 1, -2), "int32", [1, -2]),
        ("I64", struct.pack("<2q", 1, -2), "int64", [1, -2]),
        ("U8", struct.pack("<2B", 1, 255), "uint8", [1, 255]),
        ("U16", struct.pack("<2H", 1, 65535), "uint16", [1, 65535]),
        ("BOOL", b"\1\0", "bool", [True, False]),
    ],
)
def test_numbers_of_each_type_are_read(
    tmp_path: pathlib.Path, dtype: str, data: bytes, name: str, values: list[float]
) -> None:
    header = {"__metadata__": {"format": "pt"}, "x": entry(dtype, [2], 0, len(data))}
    found = SafetensorsFile(written(tmp_path / "a.safetensors", header, data))
    assert found.tensors == {"x": Tensor((2,), name)}
    np.testing.assert_array_equal(found.read("x"), values)


def test_tensors_stand_where_the_header_says_row_by_row(tmp_path: pathlib.Path) -> None:
    data = struct.pack("<7f", *range(7))
    header = {
        "last": entry("F32", [2, 3], 4, 28),
        "first": entry("F32", [], 0, 4),
        "empty": entry("F32", [0, 3], 4, 4),
    }
    text = json.dumps(header).encode() + b"   "
    found = SafetensorsFile(written(tmp_path / "a.safetensors", text, data))
    np.testing.assert_array_equal(found.read("last"), [[1, 2, 3], [4, 5, 6]])
    assert found.read("first") == 0
    assert found.read("empty").shape == (0, 3)


def test_a_type_that_is_not_known_is_listed(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "a.safetensors", {"x": entry("F8_E4M3", [2], 0, 2)}, b"\0\0")
    assert SafetensorsFile(path).tensors == {"x": Tensor((2,), "F8_E4M3")}


FLOATS = struct.pack("<2f", 1, 2)
X = entry("F32", [2], 0, 8)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has 0 bytes, too few for a header"),
        (b"\1\0\0", "it has 3 bytes, too few for a header"),
        (packed({"x": X}, FLOATS)[:20], "it has 20 bytes, too few for a header of "),
        (struct.pack("<Q", 2**63) + b"{}", "too few for a header of 9,223,372,036,854,775,808"),
        (packed({"x": X}, FLOATS)[:-1], "its tensors take 8 bytes, and it has 7 for them"),
        (packed({"x": X}, FLOATS + b"\0"), "its tensors take 8 bytes, and it has 9 for them"),
        (packed(b"{'x': 1}"), "its header is no JSON"),
        (packed(b"\xff\xfe{}"), "its header is no JSON"),
        (packed(b"[" * 100_000), "its header is no JSON"),
        (packed(b'{"x": ' + b"9" * 5000 + b"}"), "its header is no JSON"),
        (packed(b"[]"), "its header is no JSON object"),
        (packed(b'{"x": 1, "x": 2}'), "its header is no JSON: x comes twice"),
        (packed({"x": 3}), "x has no dtype"),
        (packed({"x": {**X, "dtype": 3}}), "x has no dtype"),
        (packed({"x": {**X, "shape": [-2]}}, FLOATS), "x has no shape"),
        (packed({"x": {**X, "shape": [2.0]}}, FLOATS), "x has no shape"),
        (packed({"x": {**X, "shape": [True, 2]}}, FLOATS), "x has no shape"),
        (packed({"x": {**X, "shape": [1] * 40 + [2]}}, FLOATS), "x has no shape"),
        (packed({"x": {**X, "data_offsets": [8, 0]}}, FLOATS), "x has no data_offsets"),
        (packed({"x": {**X, "data_offsets": [0, 8, 9]}}, FLOATS), "x has no data_offsets"),
        (packed({"x": {**X, "data_offsets": [0, 2**70]}}, FLOATS), "x has no data_offsets"),
        (packed({"x": {**X, "shape": [3]}}, FLOATS), r"F32 \[3\], has 8 bytes, not 12"),
        (packed({"x": {**X, "shape": [2**62, 2**62]}}, FLOATS), "has 8 bytes, not"),
        (
            packed({"x": X, "y": entry("F32", [1], 4, 8)}, FLOATS),
            "y begins before the end of x",
        ),
        (
            packed({"x": X, "y": entry("F32", [1], 12, 16)}, FLOATS * 2),
            "y leaves room behind x",
        ),
        (packed({"x": entry("F32", [1], 4, 8)}, FLOATS), "x leaves room behind the header"),
        (packed({"a\x1b[2J": 3}), r"'a\\x1b\[2J' has no dtype"),
    ],
)
def test_a_file_that_is_not_what_its_header_says_is_refused(
    tmp_path: pathlib.Path, content: bytes, said: str
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(UnusableSource, match=said) as caught:
        SafetensorsFile(path)
    assert str(caught.value).startswith(f"{path} is damaged: ")
    assert len(str(caught.value)) < len(str(path)) + 250


def test_a_header_of_gigabytes_is_not_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.safetensors"
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", 2**30))
        file.truncate(2**30 + 8)  # a hole: no disk
    with pytest.raises(UnusableSource, match="its header has 1,073,741,824 bytes; 16,777,216 are"):
        SafetensorsFile(path)


def test_a_file_that_is_cut_short_after_it_was_opened_is_refused(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "a.safetensors", {"x": X}, FLOATS)
    found = SafetensorsFile(path)
    os.truncate(path, path.stat().st_size - 3)
    with pytest.raises(UnusableSource, match="x ends after 5 of 8 bytes"):
        found.read("x")


def test_what_is_no_plain_file_is_not_opened(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(UnusableSource, match="no plain file"):
        SafetensorsFile(tmp_path / "pipe.safetensors")
    with pytest.raises(UnusableSource, match="cannot be read: No such file"):
        SafetensorsFile(tmp_path / "none.safetensors")


# ---- several files -------------------------------------------------------------------------------


def index(folder: pathlib.Path, weight_map: Any) -> pathlib.Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 16}, "weight_map": weight_map}))
    return path


def test_an_index_finds_each_tensor_in_its_file(tmp_path: pathlib.Path) -> None:
    one, two = tmp_path / "m-1.safetensors", tmp_path / "m-2.safetensors"
    written(one, {"x": X}, FLOATS)
    written(two, {"y": X, "z": entry("F32", [1], 8, 12)}, FLOATS[4:] + FLOATS)
    found = open_safetensors(index(tmp_path, {"y": two.name, "x": one.name}))
    assert isinstance(found, SafetensorsShards)
    assert found.what == "safetensors in 2 files"
    assert set(found.tensors) == {"x", "y"}
    np.testing.assert_array_equal(found.read("x"), [1, 2])
    np.testing.assert_array_equal(found.read("y"), [2, 1])
    assert found.files(["y"]) == [tmp_path / "model.safetensors.index.json", two]


@pytest.mark.parametrize(
    "name",
    [
        "../m-1.safetensors", "/etc/m-1.safetensors", "a/m-1.safetensors", "", "..", ".safetensors",
        "m-1.bin", "m\0-1.safetensors", "m\ud800.safetensors", 3, None, ["m-1.safetensors"],
    ],
)  # fmt: skip
def test_names_in_an_index_cannot_leave_its_directory(tmp_path: pathlib.Path, name: Any) -> None:
    folder = tmp_path / "in/a"
    folder.mkdir(parents=True)
    for where in (folder, folder.parent):
        written(where / "m-1.safetensors", {"x": X}, FLOATS)
    with pytest.raises(UnusableSource, match=r"is no name of a \.safetensors file beside it"):
        SafetensorsShards(index(folder, {"x": name}))


@pytest.mark.parametrize("weight_map", [None, {}, [], "m", 3])
def test_an_index_without_a_map_is_refused(tmp_path: pathlib.Path, weight_map: Any) -> None:
    with pytest.raises(UnusableSource, match="it has no weight_map"):
        SafetensorsShards(index(tmp_path, weight_map))


def test_a_missing_file_or_tensor_is_named(tmp_path: pathlib.Path) -> None:
    path = index(tmp_path, {"x": "m-1.safetensors"})
    with pytest.raises(UnusableSource, match=r"m-1\.safetensors cannot be read: No such file"):
        SafetensorsShards(path)
    written(tmp_path / "m-1.safetensors", {"xx": X}, FLOATS)
    with pytest.raises(UnusableSource, match=r"m-1\.safetensors has no x"):
        SafetensorsShards(path)
