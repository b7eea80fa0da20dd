"""Steps, bytes and seconds are those of closed forms."""

from __future__ import annotations

import itertools
import math

import pytest

from lingo.config.params import ParamError
from lingo.inspection.plan.hardware import Dimension, Hardware
from lingo.inspection.plan.network import Network
from lingo.mesh.allreduce.cost import measure
from lingo.mesh.allreduce.grid import Axis, grid, make_grid
from lingo.mesh.allreduce.plan import AllReducePlan, ring_order, ring_steps
from lingo.mesh.allreduce.planner import make_plan, multiring
from lingo.mesh.topology import topology

ALPHA, RATE = 1e-6, 70e9


@pytest.mark.parametrize(("name", "congestion"), [("multiring", 1), ("torus2d", 2)])
def test_a_multipod_takes_316_steps(name, congestion) -> None:
    plan = make_plan(name, grid((128, 32)))
    assert plan.num_steps == 316
    size = 8192 * 100
    cost = measure(plan, size, element_bytes=2)
    assert cost.padding == 0
    assert cost.bytes_sent / (2 * size) == pytest.approx(1.9995117, abs=1e-6)
    assert cost.bytes_of_all == 4096 * cost.bytes_sent
    assert cost.congestion == congestion


def test_a_ring_of_4096_chips_takes_8190_steps() -> None:
    plan = make_plan("ring", grid((128, 32)))
    cost = measure(plan, 4096)
    assert (plan.num_steps, cost.steps) == (8190, 8190)
    assert cost.bytes_sent / (4 * 4096) == pytest.approx(1.9995117, abs=1e-6)


@pytest.mark.parametrize("shape", [(8,), (2, 2), (4, 6), (3, 5), (2, 3, 4)])
def test_steps_bytes_and_seconds_of_multiring_are_the_sum_over_dims(shape) -> None:
    one = grid(shape)
    size = one.size * 30
    cost = measure(multiring(one), size)
    assert cost.steps == sum(2 * (n - 1) for n in shape)
    assert cost.bytes_sent == 2 * 4 * (size - size // one.size)
    seconds, left = 0.0, 4 * size
    for n in shape:
        seconds += 2 * (n - 1) * ALPHA + 2 * (n - 1) / n * left / RATE
        left /= n
    assert cost.seconds == pytest.approx(seconds)
    assert dims_seconds(one.axes, 4 * size) == pytest.approx(seconds)


@pytest.mark.parametrize("n", [2, 4, 5])
def test_parts_of_a_torus_of_equal_sides_share_no_link(n) -> None:
    for name, num_axes in (("torus2d", 2), ("torus3d", 3)):
        one = grid((n,) * num_axes)
        num_parts = num_axes * (2 if n > 2 else 1)  # two chips have one link
        size = num_parts * one.size
        cost = measure(make_plan(name, one), size)
        rounds = [num_parts * n**i for i in range(1, num_axes + 1)]
        bytes_in_turn = sum((n - 1) * 4 * size / parts for parts in rounds)
        assert cost.steps == 2 * num_axes * (n - 1)
        if num_axes == 2 or n > 2:
            assert cost.congestion == 1
            assert cost.seconds == pytest.approx(cost.steps * ALPHA + 2 * bytes_in_turn / RATE)


@pytest.mark.parametrize("shape", [(4, 4), (8, 8), (4, 4, 4)])
def test_a_torus_of_equal_sides_takes_the_time_that_plans_of_experiments_predict(shape) -> None:
    links = [Dimension("ring", n, RATE, 0.0) for n in shape]
    hardware = Hardware("some", 1.0, {"float32": 1.0}, 1.0, 1, tuple(links), len(shape), 1, 1)
    network = Network(hardware, topology({"data": math.prod(shape)}))
    num_elements = 2 * len(shape) * math.prod(shape) * 10
    plan = make_plan(f"torus{len(shape)}d", grid(shape, latency=0.0, bandwidth=RATE))
    expected = network.seconds("all-reduce", 4 * num_elements, ["data"])
    assert measure(plan, num_elements).seconds == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(3, 5), (7, 5), (4, 8), (7, 8)])
def test_parts_share_links_in_pairs_where_sides_differ_and_are_faster_than_one_direction(
    shape,
) -> None:
    one = grid(shape, latency=0.0)
    size = 1000 * one.size
    cost = measure(make_plan("torus2d", one), size)
    bound = 2 * 4 * (size - size // one.size) / (4 * RATE)  # all links of a chip, all the time
    assert cost.congestion == 2
    assert bound < cost.seconds < 1.7 * bound
    assert cost.max_link_bytes < 1.4 * bound * RATE


def test_a_ring_on_links_has_one_message_on_each() -> None:
    for holes in ([], ["2x2@2,2"], ["2x2@0,0", "2x2@4,6"]):
        plan = make_plan("ring", grid((6, 8), kind="line", holes=holes))
        p, size = plan.grid.num_healthy, plan.grid.num_healthy * 10
        cost = measure(plan, size)
        assert (cost.steps, cost.congestion, cost.congested_steps) == (2 * (p - 1), 1, 0)
        assert cost.bytes_sent == 2 * (p - 1) * 40
        assert cost.seconds == pytest.approx(2 * (p - 1) * (ALPHA + 40 / RATE))


def test_row_pairs_take_a_step_more_for_each_hop_of_those_that_forward() -> None:
    whole = make_plan("row_pairs", grid((8, 8), kind="line"))
    assert whole.num_steps == 2 * (15 + 3)
    inside = make_plan("row_pairs", grid((8, 8), kind="line", holes=["2x2@2,2"]))
    assert inside.num_steps == 2 * (1 + 15 + 2)
    edge = make_plan("row_pairs", grid((10, 8), kind="line", holes=["2x2@0,2"]))
    assert edge.num_steps == 2 * (2 + 15 + 3)
    assert measure(inside, 960).bytes_sent > measure(whole, 960).bytes_sent


def test_row_pairs_take_columns_if_these_have_as_many_chips_and_fewer_steps() -> None:
    for shape in ((4, 16), (16, 4)):
        assert make_plan("row_pairs", grid(shape)).num_steps == 2 * (7 + 7)
    edge = make_plan("row_pairs", grid((8, 8), kind="line", holes=["2x2@0,2"]))
    assert edge.num_steps == 2 * (1 + 15 + 2)


def test_two_messages_on_a_link_are_congestion() -> None:
    line = grid((4,), kind="line")
    ids = line.ids()
    for rings, congestion in ((ids.reshape(1, 4), 1), (ids[[0, 2, 1, 3]].reshape(1, 4), 2)):
        plan = AllReducePlan("", line, 4, tuple(ring_steps(rings, ids[None], 1)))
        cost = measure(plan, 4)
        assert cost.congestion == congestion
        assert cost.congested_steps == (6 if congestion > 1 else 0)


def test_chunks_are_padded_to_one_length() -> None:
    cost = measure(make_plan("ring", grid((8,))), 1001)
    assert cost.padding == 7
    assert cost.bytes_sent == 2 * 7 * 126 * 4
    with pytest.raises(ParamError, match="a payload of 0 elements: give 1 or more"):
        measure(make_plan("ring", grid((8,))), 0)


def dims_seconds(dims, num_bytes):
    """Returns the time of an all-reduce along dims, in their order (Cho et al. 2017)."""
    seconds = 0.0
    for one in dims:
        seconds += 2 * (one.size - 1) * one.latency
        seconds += 2 * (one.size - 1) / one.size * num_bytes / one.bandwidth
        num_bytes /= one.size
    return seconds


def factorizations(n):
    """Yields every ordered way to write n as a product of numbers above 1."""
    if n == 1:
        yield ()
    for first in range(2, n + 1):
        if n % first == 0:
            yield from ((first, *rest) for rest in factorizations(n // first))


@pytest.mark.parametrize("chunk_elements", [1, 100, 10**6])
@pytest.mark.parametrize("sizes", [(4, 6), (8, 3), (12, 2), (2, 4, 2)])
def test_no_other_dims_are_faster_than_those_of_multiring(sizes, chunk_elements) -> None:
    rates = [(1e-5, 1e9), (3e-6, 5e9), (1e-6, 2e9)]
    axes = [Axis(n, "switch", *rate) for n, rate in zip(sizes, rates, strict=False)]
    plan = multiring(make_grid(axes))
    cost = measure(plan, chunk_elements * plan.num_chunks)
    num_bytes, best = 4 * chunk_elements * plan.num_chunks, math.inf
    for lists in itertools.product(*(factorizations(n) for n in sizes)):
        pairs = zip(axes, lists, strict=True)
        dims = [axis._replace(size=n) for axis, found in pairs for n in found]
        for order in itertools.permutations(dims):
            best = min(best, dims_seconds(order, num_bytes))
    assert cost.seconds == pytest.approx(best)


def test_a_line_is_a_ring_of_hops_of_two() -> None:
    assert ring_order(6, is_closed=False).tolist() == [0, 2, 4, 5, 3, 1]
    cost = measure(multiring(grid((6,), kind="line")), 6)
    assert cost.congestion == 1
    assert cost.seconds == pytest.approx(10 * (2 * ALPHA + 4 / RATE))
