"""Digests are of what a tensor says, not of how it lies in memory or in a checkpoint."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from lingo.checkpoints import digest as digest_module
from lingo.checkpoints import store
from lingo.checkpoints.digest import digest, digests

GRID = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_it_is_that_of_type_shape_and_elements() -> None:
    line = b"float32[2, 3]\n"
    assert digest(GRID) == hashlib.sha256(line + GRID.tobytes()).hexdigest()


@pytest.mark.parametrize(
    "same", [np.asfortranarray(GRID), GRID.astype(">f4"), GRID[:, ::-1][:, ::-1]]
)
def test_the_order_of_bytes_and_axes_in_memory_does_not_matter(same: np.ndarray) -> None:
    assert digest(same) == digest(GRID)


@pytest.mark.parametrize(
    "other",
    [
        GRID.reshape(3, 2),
        GRID.astype(np.float64),
        GRID.view(np.int32),
        GRID + 1,
        GRID.astype(ml_dtypes.bfloat16),
        np.float32(0),
    ],
)
def test_another_type_shape_or_number_does(other: np.ndarray) -> None:
    assert digest(other) != digest(GRID)


def test_every_tensor_of_a_checkpoint_has_one(
    tmp_path: pathlib.Path, save: Callable, tensors: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_module, "_PART_ELEMENTS", 12)
    save(tmp_path, 1)
    found = store.latest(tmp_path)
    assert found is not None
    expected = {name: digest(np.asarray(value)) for name, value in tensors().items()}
    assert dict(digests(found)) == expected
