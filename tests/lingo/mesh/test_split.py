"""How a tensor is split over a mesh."""

from __future__ import annotations

import itertools

import pytest

from lingo.config.params import ParamError
from lingo.mesh.split import Halo, Split, halo, whole
from lingo.mesh.topology import topology

MESH = topology({"data": 2, "expert": 3, "model": 4})
THREE = Split((("data",), (), ("expert", "model")))


def test_an_axis_is_cut_into_as_many_parts_as_its_mesh_axes_have_devices():
    assert THREE.parts(MESH) == (2, 1, 12)
    assert THREE.part_shape([8, 5, 24], MESH) == (4, 5, 2)


def test_parts_of_a_size_that_does_not_divide_are_rounded_up():
    shape = [7, 5, 25]
    assert THREE.part_shape(shape, MESH) == (4, 5, 3)
    assert THREE.padded_shape(shape, MESH) == (8, 5, 36)
    assert THREE.part_size(shape, MESH) == 60


def test_further_mesh_axes_are_the_innermost():
    added = Split((("model",), ())).cut(0, ("data",))
    assert added == Split((("model", "data"), ()))
    assert added.used_axes() == {"data", "model"}


def test_a_split_prints_its_mesh_axes():
    assert str(THREE) == "[data, -, expert+model]"
    assert str(whole(0)) == "[]"


# ---- halos: against a search through all windows, and numbers by hand


CASES = [
    (size, num_parts, window, stride, dilation, padding)
    for size, num_parts, window, (stride, dilation), padding in itertools.product(
        (5, 7, 16, 33),
        (1, 2, 3, 4, 8),
        (1, 2, 3, 7),
        ((1, 1), (2, 1), (3, 1), (1, 2)),
        ("SAME", "VALID"),
    )
    if padding == "SAME" or (window - 1) * dilation < size
]


def rows_of_windows(size, window, stride, dilation, padding):
    """Returns for each window the rows that it covers, those of padding among them."""
    reach = (window - 1) * dilation + 1
    starts = list(range(0, size if padding == "SAME" else size - reach + 1, stride))
    missing = max(starts[-1] + reach - size, 0)
    before = missing // 2 if padding == "SAME" else 0
    return [[start - before + i * dilation for i in range(window)] for start in starts]


def test_a_part_needs_the_rows_that_its_windows_cover():
    for size, num_parts, window, stride, dilation, padding in CASES:
        found = halo(
            size,
            num_parts=num_parts,
            window=window,
            stride=stride,
            dilation=dilation,
            padding=padding,
        )
        windows = rows_of_windows(size, window, stride, dilation, padding)
        assert found.part == -(-size // num_parts)
        assert found.output_part == -(-len(windows) // num_parts)
        for i in range(len(windows) // found.output_part):  # the parts that are full
            rows = windows[i * found.output_part : (i + 1) * found.output_part]
            first, end = rows[0][0], rows[-1][-1] + 1
            assert found.rows_before[i] == i * found.part - first
            assert found.rows_after[i] == end - (i + 1) * found.part


@pytest.mark.parametrize(
    ("found", "expected", "exchange"),
    [
        (  # 150 windows of 7, 2 apart; 5 rows of padding, 2 of them before the first
            halo(300, num_parts=4, window=7, stride=2),
            Halo(75, 38, rows_before=(2, 1, 0, -1), rows_after=(4, 5, 6, 7)),
            (1, 6),
        ),
        (
            halo(16, num_parts=4, window=3),
            Halo(4, 4, rows_before=(1, 1, 1, 1), rows_after=(1, 1, 1, 1)),
            (1, 1),
        ),
        (  # windows inside: the later a part, the more of its rows are the next one's
            halo(16, num_parts=4, window=3, padding="VALID"),
            Halo(4, 4, rows_before=(0, 0, 0, 0), rows_after=(2, 2, 2, 2)),
            (0, 2),
        ),
        (
            halo(16, num_parts=4, window=2, stride=2),
            Halo(4, 2, rows_before=(0, 0, 0, 0), rows_after=(0, 0, 0, 0)),
            (0, 0),
        ),
        (
            halo(7, num_parts=1, window=3),
            Halo(7, 7, rows_before=(1,), rows_after=(1,)),
            (0, 0),
        ),
    ],
    ids=["stem", "same", "valid", "pool", "whole"],
)
def test_halos_by_hand(found, expected, exchange):
    assert found == expected
    assert found.exchange == exchange


def test_rows_come_from_several_devices_if_a_part_has_less_of_them():
    assert halo(8, num_parts=8, window=7).sends == (3, 3)
    assert halo(16, num_parts=8, window=7).sends == (2, 2)
    assert halo(32, num_parts=8, window=7).sends == (1, 1)
    assert halo(32, num_parts=8, window=1).sends == (0, 0)


@pytest.mark.parametrize("name", ["num_parts", "window", "stride", "dilation"])
def test_numbers_below_one_are_refused(name):
    with pytest.raises(ParamError, match=f"{name}=0: it has to be at least 1"):
        halo(8, **{"num_parts": 2, "window": 3, name: 0})


def test_an_image_that_no_window_fits_into_is_refused():
    with pytest.raises(ParamError, match="a window of 5 rows does not fit into 4 rows"):
        halo(4, num_parts=2, window=3, dilation=2, padding="VALID")
