"""Shards: what slices take, what is stacked in them, what all of them cover, and lazy arrays."""

import numpy as np
import pytest

from lingo.storage.shards import LazyArray, Shards, box, find_flaw, whole_box

GRID = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("index", "found"),
    [
        ((slice(None), slice(1, 3)), ((0, 3), (1, 3))),
        ((slice(2, 9), slice(None, None, 1)), ((2, 3), (0, 4))),
        ((slice(2, 1), slice(4, 8)), ((2, 2), (4, 4))),
    ],
)
def test_a_box_is_what_slices_take(index, found):
    assert box(index, (3, 4)) == found
    assert np.zeros((3, 4))[index].shape == tuple(stop - start for start, stop in found)


@pytest.mark.parametrize("array", [np.zeros((2, 4), np.float32), np.zeros((1, 4), np.float64)])
def test_a_shard_that_does_not_fit_its_index_is_refused(array):
    with pytest.raises(ValueError, match="is not the shard"):
        Shards((3, 4), [((slice(0, 1), slice(None)), array)])


def test_each_stacked_tensor_has_its_share_of_a_shard():
    stacked = Shards((3, 4), [((slice(1, 3), slice(0, 2)), GRID[1:, :2])])
    none, first, second = stacked.unstack(1)
    assert (none.shape, list(none.shards)) == ((4,), [])
    for row, layer in ((1, first), (2, second)):
        ((cut, array),) = layer.boxes()
        assert cut == ((0, 2),)
        np.testing.assert_array_equal(array, GRID[row, :2])


def test_a_stacked_scalar_is_an_array():
    (layer,) = Shards((1,), [((slice(None),), GRID[0, :1])]).unstack(1)
    assert layer.boxes() == [((), np.array(0.0))]


def test_several_stacked_axes_are_taken_off_in_row_major_order():
    cube = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    everything = Shards((2, 3, 4), [((slice(None),) * 3, cube)])
    found = [array for layer in everything.unstack(2) for _, array in layer.boxes()]
    np.testing.assert_array_equal(found, cube.reshape(6, 4))


@pytest.mark.parametrize(
    ("shape", "boxes", "flaw"),
    [
        ((3, 4), [whole_box((3, 4))], ""),
        ((3, 4), [((0, 3), (0, 1)), ((0, 2), (1, 4)), ((2, 3), (1, 4))], ""),
        ((3, 4), [((0, 3), (0, 1)), ((0, 2), (1, 4))], "[2, 1] of [3, 4] is in 0"),
        (
            (3, 4),
            [((0, 3), (0, 3)), ((1, 3), (2, 4)), ((0, 1), (3, 4))],
            "[1, 2] of [3, 4] is in 2",
        ),
        ((3, 4), [], "[0, 0] of [3, 4] is in 0"),
        ((), [()], ""),
        ((), [], "[] of [] is in 0"),
        ((0, 3), [], ""),
    ],
)
def test_every_element_is_in_one_box_or_the_first_that_is_not_is_named(shape, boxes, flaw):
    assert find_flaw(shape, boxes) == (f"element {flaw} shards, not in one" if flaw else "")


# ---- lazy arrays ---------------------------------------------------------------------------------

NAMES = np.array(  # of "stack/layers/[0:3]/ffn/[1:5:2]/w": layers 0, 1, 2, each with 1 and 3
    [[f"stack/layers/{i}/ffn/{j}/w" for j in (1, 3)] for i in range(3)], object
)
WHOLE = np.arange(3 * 2 * 4 * 5, dtype=np.float32).reshape(3, 2, 4, 5)


class Layers:
    """The tensors of some layers, and what was asked for of them."""

    def __init__(self):
        self.asked = []
        self.values = {
            f"stack/layers/{i}/ffn/{2 * j + 1}/w": WHOLE[i, j] for i in range(3) for j in range(2)
        }

    def read(self, names, index):
        self.asked.append((list(names), index))
        return (self.values[name][index] for name in names)

    def array(self):
        return LazyArray(NAMES, WHOLE.shape, self.read)


@pytest.mark.parametrize(
    "index",
    [
        (),
        slice(1, 2),
        (slice(0, 2), slice(1, 2)),
        (slice(None), slice(None), slice(1, 3), slice(4, 5)),
        (slice(2, 3), slice(0, 1), slice(3, 9), slice(None)),
        (slice(None), slice(None), slice(2, 1)),
    ],
)
def test_a_slice_is_that_of_the_whole(index):
    found = Layers().array()[index]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, WHOLE[index])


def test_only_what_is_asked_for_is_read():
    layers = Layers()
    array = layers.array()
    assert layers.asked == []
    _ = array[1:2, :, 1:3]
    names = ["stack/layers/1/ffn/1/w", "stack/layers/1/ffn/3/w"]
    assert layers.asked == [(names, (slice(1, 3), slice(0, 5)))]
    _ = array[1:1]
    assert len(layers.asked) == 1


def test_all_of_it_is_an_array_for_numpy():
    array = Layers().array()
    np.testing.assert_array_equal(array, WHOLE)
    assert np.asarray(array, np.float64).dtype == np.float64
    alone = LazyArray(np.array("w", object), (), lambda names, index: [np.float32(len(names))])
    np.testing.assert_array_equal(alone, np.float32(1))


@pytest.mark.parametrize("index", [0, ..., slice(0, 2, 2), (slice(None),) * 5, np.array([0, 1])])
def test_an_index_that_is_not_a_slice_is_refused(index):
    with pytest.raises(ValueError, match="slice with step 1"):
        Layers().array()[index]
