"""Parts of tensors: what slices take, what is stacked in them, and what all of them cover."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.storage.shards import Shards, box, find_flaw, whole_box

GRID = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("index", "found"),
    [
        ((slice(None), slice(1, 3)), ((0, 3), (1, 3))),
        ((slice(2, 9), slice(None, None, 1)), ((2, 3), (0, 4))),
        ((slice(2, 1), slice(4, 8)), ((2, 2), (4, 4))),
    ],
)
def test_a_box_is_what_slices_take(index: tuple[slice, ...], found: tuple) -> None:
    assert box(index, (3, 4)) == found
    assert np.zeros((3, 4))[index].shape == tuple(stop - start for start, stop in found)


@pytest.mark.parametrize("index", [(slice(None),), (slice(0, 3, 2), slice(None)), (0, slice(None))])
def test_anything_but_a_slice_with_step_1_for_each_axis_is_refused(index: tuple) -> None:
    with pytest.raises(ValueError, match=r"no slice with step 1 for each axis of \[3, 4\]"):
        box(index, (3, 4))


@pytest.mark.parametrize("array", [np.zeros((2, 4), np.float32), np.zeros((1, 4), np.float64)])
def test_a_part_that_does_not_fit_its_index_is_refused(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="is not the part"):
        Shards((3, 4), [((slice(0, 1), slice(None)), array)])


def test_each_stacked_tensor_has_its_share_of_a_part() -> None:
    parts = Shards((3, 4), [((slice(1, 3), slice(0, 2)), GRID[1:, :2])])
    none, first, second = parts.unstack(1)
    assert (none.shape, list(none.shards)) == ((4,), [])
    for row, layer in ((1, first), (2, second)):
        ((cut, array),) = layer.boxes()
        assert cut == ((0, 2),)
        np.testing.assert_array_equal(array, GRID[row, :2])


def test_a_stacked_scalar_is_an_array() -> None:
    (layer,) = Shards((1,), [((slice(None),), GRID[0, :1])]).unstack(1)
    assert layer.boxes() == [((), np.array(0.0))]


def test_several_stacked_axes_are_taken_off_in_row_major_order() -> None:
    cube = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    everything = Shards((2, 3, 4), [((slice(None),) * 3, cube)])
    found = [array for layer in everything.unstack(2) for _, array in layer.boxes()]
    np.testing.assert_array_equal(found, cube.reshape(6, 4))


@pytest.mark.parametrize(
    ("boxes", "said"),
    [
        ([whole_box((3, 4))], ""),
        ([((0, 3), (0, 1)), ((0, 2), (1, 4)), ((2, 3), (1, 4))], ""),
        ([((0, 3), (0, 1)), ((0, 2), (1, 4))], "element [2, 1] of [3, 4] is in 0 parts"),
        (
            [((0, 3), (0, 3)), ((1, 3), (2, 4)), ((0, 1), (3, 4))],
            "element [1, 2] of [3, 4] is in 2",
        ),
        ([((0, 3), (0, 2)), ((0, 3), (0, 2))], "element [0, 0] of [3, 4] is in 2 parts"),
        ([], "element [0, 0] of [3, 4] is in 0 parts"),
    ],
)
def test_every_element_is_in_one_box_or_the_first_that_is_not_is_named(
    boxes: list, said: str
) -> None:
    assert find_flaw((3, 4), boxes)[: len(said)] == said
    assert bool(find_flaw((3, 4), boxes)) == bool(said)


def test_scalars_and_empty_tensors_are_covered_too() -> None:
    assert find_flaw((), [()]) == find_flaw((0, 3), []) == ""
    assert find_flaw((), []) == "element [] of [] is in 0 parts, not in one"
