"""Grids with holes, and ways around these."""

from __future__ import annotations

import pytest

from lingo.config.params import ParamError
from lingo.mesh.allreduce.cost import measure, write_picture
from lingo.mesh.allreduce.grid import Axis, Grid, grid
from lingo.mesh.allreduce.planner import make_plan


def test_a_route_is_straight_the_short_way_and_around_holes() -> None:
    ring, line = grid((1, 8)), grid((1, 8), kind="line")
    assert [len(ring.route(0, i).links) for i in range(8)] == [0, 1, 2, 3, 4, 3, 2, 1]
    assert [len(line.route(0, i).links) for i in range(8)] == [*range(8)]
    around = grid((4, 4), kind="line", holes=["2x1@1,1"])
    assert len(around.route(4, 6).links) == 4
    assert around.route(4, 6).latency == pytest.approx(4e-6)
    switch = grid((8,), kind="switch")
    assert switch.route(0, 5).latency == 1e-6
    assert set(switch.route(0, 5).links).isdisjoint(switch.route(5, 0).links)


@pytest.mark.parametrize(
    ("shape", "holes", "message"),
    [
        ((4, 0), [], "a size of 1 or more for each axis"),
        ((1,) * 70, [], "a mesh of 70 axes: all-reduce is planned for 8 at most"),
        ((4, 4), ["9" * 5000 + "x1@0,0"], "999 is not written as its sizes and first position"),
        ((4, 4), ["x".join("1" * 70) + "@0"], "1 needs one size and one position for each axis"),
        ((1024, 1024), [], "1,048,576 chips: all-reduce is planned for 8,192 at most"),
        ((4, 4), ["2x2"], "the hole '2x2' is not written as its sizes and first position: 2x2@4,6"),
        ((4, 4), ["2@1"], "needs one size and one position for each axis"),
        ((4, 4), ["2x2@3,3"], "'2x2@3,3' is not inside a 4 x 4 mesh"),
        ((4, 4), ["0x0@0,0"], "the hole '0x0@0,0' has a size of 0"),
        ((2, 2), ["2x2@0,0"], "leave no chip"),
        ((4, 4), ["4x1@0,1"], r"split a 4 x 4 mesh: .* \(0, 0\) to only 3 of the 11 other chips"),
    ],
)
def test_what_is_no_grid_is_refused(shape, holes, message) -> None:
    with pytest.raises(ParamError, match=message):
        grid(shape, kind="line", holes=holes)


def test_planners_refuse_what_they_cannot_go_around() -> None:
    holes = grid((4, 4), holes=["1x1@0,0"])
    with pytest.raises(ParamError, match=r"torus2d needs every chip, .* given; row_pairs can"):
        make_plan("torus2d", holes)
    with pytest.raises(ParamError, match="torus3d needs 3 axes"):
        make_plan("torus3d", holes)
    with pytest.raises(ParamError, match="row_pairs needs rows and columns"):
        make_plan("row_pairs", grid((8,)))
    apart = grid((4, 4), holes=["1x1@0,0", "1x1@2,2"])
    message = r"two adjacent rows or columns without a hole.* has none; none of the other planners"
    with pytest.raises(ParamError, match=message):
        make_plan("row_pairs", apart)


def test_no_way_leads_to_a_chip_that_is_cut_off() -> None:
    axis = Axis(3, "line")
    with pytest.raises(ParamError, match=r"no links lead from the chip \(0,\) to \(2,\)"):
        Grid((axis,), frozenset([1])).route(0, 2)


def test_a_picture_is_drawn(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    for kind in ("ring", "line"):
        plan = make_plan("row_pairs", grid((4, 6), kind=kind, holes=["2x2@2,2"]))
        write_picture(plan, measure(plan, 100), tmp_path / f"{kind}.svg")
    closed, opened = ((tmp_path / f"{kind}.svg").read_text() for kind in ("ring", "line"))
    assert closed.count("<path") > opened.count("<path") > 50
    plan = make_plan("multiring", grid((2, 2, 2)))
    with pytest.raises(ParamError, match="shows rings and lines in one or two axes"):
        write_picture(plan, measure(plan, 100), tmp_path / "three.svg")
