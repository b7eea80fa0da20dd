"""Groups of devices, in every form that XLA writes them in."""

import pytest

from lingo.mesh.hlo.groups import axes_between, axes_of, groups, pairs
from lingo.mesh.topology import topology

MESH = topology({"data": 2, "model": 4})
ROWS = [[0, 1, 2, 3], [4, 5, 6, 7]]
COLUMNS = [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", ROWS),
        ("replica_groups=[2,4]<=[8]", ROWS),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", COLUMNS),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", ROWS),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", COLUMNS),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}", ROWS),
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=(4,5,6,7,0,1,2,3) {'b'}", ROWS[::-1]),
        ("replica_groups=mesh['a'=8] {'a':(2)4}", ROWS),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", COLUMNS),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", [list(range(8))]),
        ("replica_groups={}", [list(range(8))]),
        ("to_apply=%add", [list(range(8))]),
    ],
)
def test_every_form_names_the_same_groups(text, expected):
    line = f"%x), channel_id=1, {text}, use_global_device_ids=true"
    assert groups(line, 8) == expected


@pytest.mark.parametrize(
    ("found", "axes"),
    [
        (ROWS, ("model",)),
        (ROWS[::-1], ("model",)),
        (COLUMNS, ("data",)),
        ([list(range(8))], ("data", "model")),
        ([[i] for i in range(8)], ()),
        ([[0, 1], [2, 3], [4, 5], [6, 7]], None),
        ([[0, 5, 2, 7], [4, 1, 6, 3]], None),
    ],
)
def test_groups_stand_along_mesh_axes_if_they_are_whole_rows(found, axes):
    assert axes_of(found, MESH) == axes


def test_three_axes_are_told_apart():
    cube = topology({"stage": 2, "data": 2, "model": 2})
    assert axes_of([[0, 1], [2, 3], [4, 5], [6, 7]], cube) == ("model",)
    assert axes_of([[0, 2], [1, 3], [4, 6], [5, 7]], cube) == ("data",)
    assert axes_of([[0, 1, 4, 5], [2, 3, 6, 7]], cube) == ("stage", "model")


def test_a_permutation_moves_along_the_axes_in_which_its_pairs_differ():
    found = pairs("source_target_pairs={{0,4},{1,5},{2,6},{3,7}}, metadata={}")
    assert found == COLUMNS
    assert axes_between(found, MESH) == ("data",)
    assert axes_between([[0, 1], [1, 2], [3, 0]], MESH) == ("model",)
    assert axes_between([[0, 5]], MESH) == ("data", "model")
    assert axes_between(pairs("source_target_pairs={}"), MESH) == ()
