"""Tensors of every type go through files, whole and in slices, in one part or in several."""

import ml_dtypes
import numpy as np
import pytest

from lingo.checkpoints.bundle import DTYPES, merge, restore, write_bundle


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_is_read_whole_and_in_slices(tmp_path, name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    value = (np.arange(24).reshape(4, 6) % 5).astype(dtype)
    table = {}
    merge(tmp_path, write_bundle(tmp_path, [("w", value), ("s", np.asarray(value[1, 1]))], table))
    assert table["w"] == {"shape": [4, 6], "dtype": name, "boxes": [((0, 4), (0, 6))]}
    whole, one, part = restore(tmp_path, ["w", "s", "w"], ["", "", "4 6 1,2:2,4"], [name] * 3)
    assert whole.dtype == part.dtype == dtype
    np.testing.assert_array_equal(whole, value)
    assert one == value[1, 1]
    np.testing.assert_array_equal(part, value[1:3, 2:])
