"""Lazy arrays: any slice is that of the whole, and nothing more is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from lingo.storage.lazy_array import Index, LazyArray

NAMES = np.array(  # of "stack/layers/[0:3]/ffn/[1:5:2]/w": layers 0, 1, 2, each with 1 and 3
    [[f"stack/layers/{i}/ffn/{j}/w" for j in (1, 3)] for i in range(3)], object
)
WHOLE = np.arange(3 * 2 * 4 * 5, dtype=np.float32).reshape(3, 2, 4, 5)


class Layers:
    """The tensors of some layers, and what was asked for of them."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], Index]] = []
        self.values = {
            f"stack/layers/{i}/ffn/{2 * j + 1}/w": WHOLE[i, j] for i in range(3) for j in range(2)
        }

    def read(self, names: Sequence[str], index: Index) -> Iterator[np.ndarray]:
        self.asked.append((list(names), index))
        return (self.values[name][index] for name in names)

    def array(self) -> LazyArray:
        return LazyArray(NAMES, WHOLE.shape, self.read)


@pytest.mark.parametrize(
    "index",
    [
        (),
        slice(1, 2),
        (slice(0, 2), slice(1, 2)),
        (slice(None), slice(None), slice(1, 3), slice(4, 5)),
        (slice(2, 3), slice(0, 1), slice(3, 9), slice(None)),
        (slice(3, 3),),
        (slice(None), slice(None), slice(2, 1)),
    ],
)
def test_a_slice_is_that_of_the_whole(index: Any) -> None:
    found = Layers().array()[index]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, WHOLE[index])


def test_only_what_is_asked_for_is_read() -> None:
    layers = Layers()
    array = layers.array()
    assert layers.asked == []
    _ = array[1:2, :, 1:3]
    names = ["stack/layers/1/ffn/1/w", "stack/layers/1/ffn/3/w"]
    assert layers.asked == [(names, (slice(1, 3), slice(0, 5)))]
    _ = array[1:1]
    assert len(layers.asked) == 1


def test_all_of_it_is_an_array_for_numpy_and_tensorflow() -> None:
    array = Layers().array()
    np.testing.assert_array_equal(array, WHOLE)
    assert np.asarray(array, np.float64).dtype == np.float64
    assert (array.shape, array.dtype) == (WHOLE.shape, np.float32)


def test_a_tensor_that_is_not_stacked_has_one_name() -> None:
    array = LazyArray(np.array("w", object), (), lambda names, index: [np.float32(len(names))])
    np.testing.assert_array_equal(array, np.float32(1))


@pytest.mark.parametrize("index", [0, ..., slice(0, 2, 2), (slice(None),) * 5, np.array([0, 1])])
def test_an_index_that_is_no_slice_is_refused(index: Any) -> None:
    with pytest.raises(ValueError, match="is no slice with step 1"):
        Layers().array()[index]
