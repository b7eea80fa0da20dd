"""Arrays that are written into a file are read again; another file is refused."""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.array_input import ArrayInput, write_arrays
from lingo.data.files import DataError
from lingo.storage.examples import read_archive

NUMBERS = np.arange(10)
ARRAYS = {"x": np.stack([NUMBERS, -NUMBERS], 1).astype("f"), "y": NUMBERS.astype("i")}


def test_arrays_are_written_and_read_again(tmp_path):
    params = write_arrays(tmp_path / "a.npz", ARRAYS | {"name": ["ab", "c"] * 5}, batch_size=4)
    batch = params.set(shuffle=False).build().batch(0)
    np.testing.assert_array_equal(batch["x"], ARRAYS["x"][:4])
    assert batch["name"].tolist() == [b"ab", b"c"] * 2
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_a_file_that_is_not_of_arrays_is_refused(tmp_path):
    for name, content in {"a": b"", "b": b"not arrays", "c": b"PK\x03\x04cut short"}.items():
        file = tmp_path / f"{name}.npz"
        file.write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}\.npz is not a file of arrays"):
            ArrayInput.params(file=str(file), batch_size=1).build().prepare()
    np.savez(tmp_path / "o.npz", x=np.array([{}, {}]))
    with pytest.raises(DataError, match="an array of Python objects"):
        ArrayInput.params(file=str(tmp_path / "o.npz"), batch_size=1).build().prepare()
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(DataError, match="it is not an archive of named arrays"):
        ArrayInput.params(file=str(tmp_path / "one.npy"), batch_size=1).build().prepare()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        ArrayInput.params(file=str(tmp_path / "none.npz"), batch_size=1).build().prepare()
    with pytest.raises(ParamError, match=r"does not end in \.npz"):
        write_arrays(tmp_path / "a.txt", ARRAYS)
    with pytest.raises(ParamError, match="'x' has a text that ends in a zero byte"):
        write_arrays(tmp_path / "z.npz", {"x": [b"a", b"b\0"]})
    assert not (tmp_path / "z.npz").exists()


def packed(packing=zipfile.ZIP_STORED, **arrays):
    """Returns an archive of arrays' files, each of a header that may lie and its bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", packing) as archive:
        for name, (shape, descr, data) in arrays.items():
            header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
            start = b"\x93NUMPY\2\0" + struct.pack("<I", len(header)) + header
            archive.writestr(f"{name}.npy", start + data)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (packed(x=((4, 2), "<f4", bytes(28))), "has 28 bytes, but its header, .* needs 32"),
        (packed(x=((10**30,), "<f4", bytes(4))), r"has 4 bytes, but its header, .* needs 4\d+"),
        (packed(x=((1,) * 100, "<f4", bytes(4))), "has the shape"),
        (packed(x=((1,) * 5000, "<f4", bytes(4))), "Header info length .* is large"),
        (packed(x=((-1, -1), "<f4", bytes(4))), "has the shape"),
        (packed(x=((4,), "<q9", bytes(4))), "descr"),
        (packed(x=((4,), "|O", bytes(32))), "an array of Python objects"),
        (
            packed(zipfile.ZIP_DEFLATED, x=((1 << 29,), "|u1", bytes(1 << 29))),
            r"would unpack to 536,\d+,\d+, more than is plausible",
        ),
    ],
    ids=["short", "huge", "axes", "many axes", "negative", "type", "objects", "bomb"],
)
def test_an_archive_whose_headers_lie_is_refused_before_it_is_unpacked(tmp_path, content, reason):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.npz is not a file of arrays.*{reason}"):
        ArrayInput.params(file=str(tmp_path / "a.npz"), batch_size=1).build().prepare()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_any_order_shape_and_type_are_read(tmp_path, save):
    draw = np.random.default_rng(0)
    arrays = {
        "columns": np.asfortranarray(draw.random([4, 3, 2])),
        "texts": np.array(["ab", "c", "d", "ef"]),
        "big": draw.integers(0, 9, [4]).astype(">i4"),
        "none": np.zeros([4, 0], "f"),
    }
    save(tmp_path / "a.npz", **arrays)
    with open(tmp_path / "a.npz", "rb") as file:
        found = read_archive(file)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_values_that_are_not_finite_are_told_when_the_data_is_opened(tmp_path):
    arrays = {"x": np.ones([5, 2], "f"), "y": np.zeros(5, "f"), "label": np.arange(5)}
    arrays["x"][3, 1], arrays["x"][4, 0] = np.nan, np.inf
    data = write_arrays(tmp_path / "a.npz", arrays, batch_size=2).build()
    data.prepare()
    assert data.remarks() == [
        "'x' has values that are not finite in 2 of 5 examples, first in example 3"
    ]
