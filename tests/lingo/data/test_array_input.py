"""Arrays that are written into a file are read again; another file is refused."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.array_input import ArrayInput, write_arrays
from lingo.data.sources.files import DataError

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
    with pytest.raises(DataError, match="is one array, not an archive"):
        ArrayInput.params(file=str(tmp_path / "one.npy"), batch_size=1).build().prepare()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        ArrayInput.params(file=str(tmp_path / "none.npz"), batch_size=1).build().prepare()
    with pytest.raises(ParamError, match=r"does not end in \.npz"):
        write_arrays(tmp_path / "a.txt", ARRAYS)
    with pytest.raises(ParamError, match="'x' has a text that ends in a zero byte"):
        write_arrays(tmp_path / "z.npz", {"x": [b"a", b"b\0"]})
    assert not (tmp_path / "z.npz").exists()


def test_values_that_are_not_finite_are_told_when_the_data_is_opened(tmp_path):
    arrays = {"x": np.ones([5, 2], "f"), "y": np.zeros(5, "f"), "label": np.arange(5)}
    arrays["x"][3, 1], arrays["x"][4, 0] = np.nan, np.inf
    data = write_arrays(tmp_path / "a.npz", arrays, batch_size=2).build()
    data.prepare()
    assert data.remarks() == [
        "'x' has values that are not finite in 2 of 5 examples, first in example 3"
    ]
