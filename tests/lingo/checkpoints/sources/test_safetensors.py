"""Safetensors files, written here byte by byte: read exactly, or refused with a reason."""

import json
import os
import struct
import sys

import numpy as np
import pytest

from lingo.checkpoints.sources.safetensors import Safetensors
from lingo.checkpoints.sources.weight_source import Tensor, UnusableSource
from lingo.config.base.errors import MissingPackage


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def packed(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write(path, header, data=b""):
    path.write_bytes(packed(header, data))
    return path


@pytest.mark.parametrize(
    ("dtype", "data", "name", "values"),
    [
        ("F32", struct.pack("<2f", 1.5, -2), "float32", [1.5, -2]),
        ("BF16", b"\xc0\x3f\x00\xc0", "bfloat16", [1.5, -2]),
        ("F8_E4M3", b"\0\0", "F8_E4M3", None),  # listed, but not read
        ("BOOL", b"\1\0", "bool", [True, False]),
    ],
)
def test_tensors_of_each_type_are_read(tmp_path, dtype, data, name, values):
    header = {"__metadata__": {"format": "pt"}, "x": entry(dtype, [2], 0, len(data))}
    source = Safetensors(write(tmp_path / "a.safetensors", header, data))
    assert source.tensors == {"x": Tensor((2,), name)}
    if values is not None:
        np.testing.assert_array_equal(source.read("x"), values)


FLOATS = struct.pack("<2f", 1, 2)
X = entry("F32", [2], 0, 8)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (packed({"x": X}, FLOATS)[:20], "invalid header length"),
        (packed({"x": X}, FLOATS)[:-1], "file not fully covered"),
        (packed(b"[" * 100_000), "invalid JSON in header"),
        (packed({"x": {**X, "shape": [-2]}}, FLOATS), "invalid JSON in header"),
        (packed({"x": {**X, "shape": [2, *[1] * 5000]}}, FLOATS), "x has 5,001 axes, more than 32"),
        (packed({"a\x1b[2J": entry("F32", [1], 4, 8)}, FLOATS), r"a\\x1b\[2J"),
    ],
)
def test_a_damaged_file_is_refused_with_its_name_in_one_short_line(tmp_path, content, reason):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(UnusableSource, match=reason) as caught:
        Safetensors(path)
    assert str(caught.value).startswith(f"{path} is damaged: ")
    assert len(str(caught.value)) < len(str(path)) + 250
    assert str(caught.value).isprintable()


def test_a_file_that_is_cut_short_after_it_was_opened_is_refused(tmp_path):
    path = write(tmp_path / "a.safetensors", {"x": X}, FLOATS)
    source = Safetensors(path)
    os.truncate(path, path.stat().st_size - 3)
    with pytest.raises(UnusableSource, match=r"it had \d+ bytes, and now has \d+"):
        source.read("x")


def test_what_is_no_plain_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(UnusableSource, match="not a regular file"):
        Safetensors(tmp_path / "pipe.safetensors")
    with pytest.raises(UnusableSource, match="cannot be read: No such file"):
        Safetensors(tmp_path / "none.safetensors")


def test_without_the_library_the_error_names_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "a.safetensors", {"x": X}, FLOATS)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[safetensors\]'"):
        Safetensors(path)


# ---- several files -------------------------------------------------------------------------------


def index(folder, weight_map):
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 16}, "weight_map": weight_map}))
    return path


def test_an_index_finds_each_tensor_in_its_file(tmp_path):
    one, two = tmp_path / "m-1.safetensors", tmp_path / "m-2.safetensors"
    write(one, {"x": X}, FLOATS)
    write(two, {"y": X, "z": entry("F32", [1], 8, 12)}, FLOATS[4:] + FLOATS)
    source = Safetensors(index(tmp_path, {"y": two.name, "x": one.name}))
    assert source.what == "safetensors in 2 files"
    assert set(source.tensors) == {"x", "y"}
    np.testing.assert_array_equal(source.read("x"), [1, 2])
    np.testing.assert_array_equal(source.read("y"), [2, 1])
    assert source.files(["y"]) == [tmp_path / "model.safetensors.index.json", two]


@pytest.mark.parametrize(
    "name",
    [
        *("../m-1.safetensors", "/etc/m-1.safetensors", "a/m-1.safetensors", "", "..", "m-1.bin"),
        *(".safetensors", "m\0-1.safetensors", "m\ud800.safetensors", None, ["m-1.safetensors"]),
    ],
)
def test_names_in_an_index_cannot_leave_its_directory(tmp_path, name):
    folder = tmp_path / "in/a"
    folder.mkdir(parents=True)
    for where in (folder, folder.parent):
        write(where / "m-1.safetensors", {"x": X}, FLOATS)
    with pytest.raises(UnusableSource, match=r"is not the name of a \.safetensors file next to it"):
        Safetensors(index(folder, {"x": name}))


@pytest.mark.parametrize("weight_map", [None, {}, ["m"]])
def test_an_index_without_a_map_is_refused(tmp_path, weight_map):
    with pytest.raises(UnusableSource, match="it has no weight_map"):
        Safetensors(index(tmp_path, weight_map))


def test_a_missing_file_or_tensor_is_named(tmp_path):
    path = index(tmp_path, {"x": "m-1.safetensors"})
    with pytest.raises(UnusableSource, match=r"m-1\.safetensors cannot be read: No such file"):
        Safetensors(path)
    write(tmp_path / "m-1.safetensors", {"xx": X}, FLOATS)
    with pytest.raises(UnusableSource, match=r"m-1\.safetensors has no x"):
        Safetensors(path)
