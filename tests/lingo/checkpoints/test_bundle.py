"""Tensors of every type go through files, whole and in slices, in one part or in several."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lingo.checkpoints import bundle, store
from lingo.checkpoints.bundle import DTYPES, merge, num_bytes, restore, write_bundle
from lingo.config.lazy import tf


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_is_read_whole_and_in_slices(tmp_path, name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    value = (np.arange(24).reshape(4, 6) % 5).astype(dtype)
    table: dict[str, dict] = {}
    merge(tmp_path, write_bundle(tmp_path, [("w", value), ("s", np.asarray(value[1, 1]))], table))
    assert table["w"] == {"shape": [4, 6], "dtype": name, "boxes": [((0, 4), (0, 6))]}
    whole, one, part = restore(tmp_path, ["w", "s", "w"], ["", "", "4 6 1,2:2,4"], [name] * 3)
    assert whole.dtype == part.dtype == dtype
    np.testing.assert_array_equal(whole, value)
    assert one == value[1, 1]
    np.testing.assert_array_equal(part, value[1:3, 2:])


def test_parts_written_one_after_the_other_are_one_bundle(tmp_path, save, tensors, monkeypatch):
    monkeypatch.setattr(bundle, "_GROUP_BYTES", 40)
    save(tmp_path, 1)
    found = store.latest(tmp_path)
    assert found is not None
    assert len([f for f in found.manifest["files"] if "data" in f]) == 3
    np.testing.assert_array_equal(
        found.read(["slots/m/ffn/w"])["slots/m/ffn/w"], tensors()["slots/m/ffn/w"]
    )


def test_two_tensors_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="two tensors have the name 'a'"):
        write_bundle(tmp_path, [("a", np.zeros(1)), ("a", np.zeros(1))], {})


def test_sizes_are_those_of_the_elements():
    table = {"a": {"shape": [3, 4], "dtype": "bfloat16"}, "b": {"shape": [], "dtype": "int64"}}
    assert num_bytes(table) == 3 * 4 * 2 + 8


def test_a_missing_bundle_is_an_error_of_tensorflow(tmp_path):
    assert restore(tmp_path / "missing", [], [], []) == []  # nothing is opened
    with pytest.raises(tf.errors.OpError):
        restore(tmp_path, ["a"], [""], ["float32"])
