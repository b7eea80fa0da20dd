"""The time of collectives: closed forms, and slow counts of what each link carries."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest

from lingo.inspection.plan.hardware import HARDWARE, Dimension, Hardware
from lingo.inspection.plan.network import Network
from lingo.mesh.topology import topology

BANDWIDTH, BYTES = 1e9, 1e6


def hardware(*dimensions: Dimension, torus: int) -> Hardware:
    return Hardware("some", 1.0, {"float32": 1.0}, 1.0, 1, dimensions, torus, 1, 1)


def rings(*sizes: int, wraps: bool = True, latency: float = 0.0) -> Hardware:
    sides = [Dimension("ring", size, BANDWIDTH, latency, wraps) for size in sizes]
    return hardware(*sides, torus=len(sides))


def line_load(size: int, *, closes: bool) -> float:
    """Returns the most parts of a message that a link carries in an all-to-all, one by one."""
    load: dict[tuple[int, int], float] = defaultdict(float)
    for sender, receiver in itertools.permutations(range(size), 2):
        step = 1 if receiver > sender else -1
        far = abs(receiver - sender) > size / 2
        halves = closes and abs(receiver - sender) == size / 2
        for direction, share in [(step, 0.5), (-step, 0.5)] if halves else [(step, 1.0)]:
            way = -direction if closes and far and not halves else direction
            place = sender
            while place != receiver:
                after = (place + way) % size
                load[place, after] += share
                place = after
    return max(load.values())


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_an_all_to_all_takes_as_long_as_its_fullest_link(size: int, closes: bool) -> None:
    network = Network(rings(size, wraps=closes), topology({"data": size}))
    expected = line_load(size, closes=closes) * BYTES / size / BANDWIDTH
    assert network.seconds("all-to-all", BYTES, ["data"]) == pytest.approx(expected)


@pytest.mark.parametrize("wraps", [True, False])
def test_a_ring_gathers_in_both_directions_if_it_closes(wraps: bool) -> None:
    network = Network(rings(8, wraps=wraps, latency=1.0), topology({"data": 8}))
    directions = 2 if wraps else 1
    once = 7 / 8 * BYTES / BANDWIDTH / directions + 7 / directions
    assert network.seconds("all-gather", BYTES, ["data"]) == pytest.approx(once)
    assert network.seconds("reduce-scatter", BYTES, ["data"]) == pytest.approx(once)
    assert network.seconds("all-reduce", BYTES, ["data"]) == pytest.approx(2 * once)


def test_a_torus_gathers_along_all_sides_at_once() -> None:
    network = Network(rings(8, 4), topology({"data": 32}))
    assert network.seconds("all-gather", BYTES, ["data"]) == pytest.approx(
        31 / 32 * BYTES / (4 * BANDWIDTH)
    )


def test_groups_that_cross_the_same_links_share_them() -> None:
    network = Network(rings(16), topology({"data": 4, "model": 4}))
    near, far = (network.seconds("all-gather", BYTES, [axis]) for axis in ("model", "data"))
    # neighbours form open lines; the others closed rings, of which four share each link
    assert near == pytest.approx(3 / 4 * BYTES / BANDWIDTH)
    assert far == pytest.approx(3 / 4 * BYTES / (2 * BANDWIDTH / 4))
    assert network.seconds("permute", BYTES, ["data"]) == pytest.approx(4 * BYTES / BANDWIDTH)


def test_an_outer_switch_gets_the_part_that_an_inner_one_leaves() -> None:
    machine, wire = Dimension("switch", 8, 9e9, 0.0), Dimension("switch", 2**20, 1e9, 0.0)
    network = Network(hardware(machine, wire, torus=0), topology({"data": 32}))
    expected = 7 / 8 * BYTES / 9e9 + 3 / 4 * BYTES / 8 / 1e9
    assert network.seconds("all-gather", BYTES, ["data"]) == pytest.approx(expected)
    expected = 7 / 8 * BYTES / 9e9 + 3 / 4 * BYTES / 1e9
    assert network.seconds("all-to-all", BYTES, ["data"]) == pytest.approx(expected)


def test_the_cores_of_a_chip_share_its_links() -> None:
    one = Network(HARDWARE["tpu_v3"], topology({"data": 4, "model": 2}))
    assert one.seconds("all-gather", 1e9, ["model"]) == pytest.approx(0.5 * 1e9 / 450e9, rel=1e-3)
    # 2 x 2 chips: two open lines, half of a link for each core
    assert one.seconds("all-gather", 1e9, ["data"]) == pytest.approx(0.75 * 1e9 / 70e9, rel=1e-3)


def test_one_device_exchanges_nothing() -> None:
    network = Network(HARDWARE["h100"], topology({"data": 8}))
    assert network.seconds("all-reduce", BYTES, ["model"]) == 0.0
    assert network.seconds("all-reduce", BYTES, []) == 0.0


def test_switches_inside_each_other_are_used_from_the_inner_one_out() -> None:
    rates = (8e9, 2e9, 1e9)
    sizes = (4, 2, 16)
    switches = [Dimension("switch", n, r, 0.0) for n, r in zip(sizes, rates, strict=True)]
    nested = hardware(*switches, torus=0)
    network = Network(nested, topology({"data": 8, "model": 4}))
    inner, middle, outer = 3 / 4 / rates[0], 1 / 2 / rates[1] / 4, 3 / 4 / rates[2] / 8
    whole = network.seconds("all-gather", BYTES, ["data", "model"])
    assert whole == pytest.approx(BYTES * (inner + middle + outer))
    assert network.seconds("all-gather", BYTES, ["model"]) == pytest.approx(BYTES * inner)
    across = BYTES * (1 / 2 / rates[1] + 3 / 4 / rates[2] / 2)
    assert network.seconds("all-gather", BYTES, ["data"]) == pytest.approx(across)
