"""All-reduces are exact: every chip ends with the same sum, whatever has failed."""

from __future__ import annotations

import collections
import random

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.mesh.allreduce.execution import execute, is_exact, owned_chunks, round_to_bfloat16
from lingo.mesh.allreduce.grid import grid
from lingo.mesh.allreduce.planner import PLANNERS, make_plan, make_plans, multiring

HOLES = {
    "one": ["2x2@4,6"],
    "two": ["2x2@4,6", "2x2@10,20"],
    "corner": ["2x2@0,0"],
    "corners": ["2x2@0,0", "2x2@14,30"],
    "edge": ["2x2@6,0"],
    "odd place": ["2x2@5,7"],
    "large": ["4x2@4,6"],
}


@pytest.mark.parametrize("kind", ["ring", "line"])
@pytest.mark.parametrize("holes", HOLES.values(), ids=HOLES)
@pytest.mark.parametrize("shape", [(16, 32), (32, 32)])
def test_pods_with_holes_have_exact_rings_and_row_pairs(shape, holes, kind) -> None:
    pod = grid(shape, kind=kind, holes=holes)
    plans, refusals = make_plans(pod)
    assert [plan.name for plan in plans] == ["ring", "row_pairs"]
    assert all(map(is_exact, plans))
    assert all("torus" in why or "every chip" in why or "axes" in why for why in refusals.values())


def test_200_random_grids_with_random_holes_give_exact_sums_or_refuse() -> None:
    rng, found = random.Random(0), collections.Counter()
    while found["grids"] < 200:
        shape = [rng.randint(1, 7) for _ in range(rng.choice([1, 2, 2, 2, 3, 3]))]
        sizes = [[rng.randint(1, min(2, n)) for n in shape] for _ in range(rng.randint(0, 3))]
        holes = [
            f"{'x'.join(map(str, size))}@"
            f"{','.join(str(rng.randint(0, n - k)) for n, k in zip(shape, size, strict=True))}"
            for size in sizes
        ]
        found["grids"] += 1
        try:
            one = grid(shape, kind=rng.choice(["ring", "line"]), holes=holes)
        except ParamError:
            found["split"] += 1
            continue
        plans, _ = make_plans(one)
        for plan in plans:
            assert is_exact(plan), (plan.name, shape, holes)
            found[plan.name] += 1
    assert min(found[name] for name in PLANNERS) > 10
    assert found["split"] < 60


@pytest.mark.parametrize("name", ["ring", "row_pairs", "multiring", "torus2d"])
@pytest.mark.parametrize("num_elements", [1, 7, 100])
def test_sums_of_floats_are_the_same_bits_on_every_chip(name, num_elements) -> None:
    holes = ["2x2@2,1"] if name in ("ring", "row_pairs") else []
    plan = make_plan(name, grid((6, 4), holes=holes))
    values = np.random.default_rng(0).normal(size=(24, num_elements)).astype(np.float32)
    for payload in ("exact", "bfloat16"):
        sums = execute(plan, values, payload=payload)[plan.grid.healthy]
        assert (sums.view(np.uint32) == sums[0].view(np.uint32)).all()
        error = np.abs(sums[0] - values[plan.grid.healthy].astype(float).sum(0)).max()
        assert error < (1e-5 if payload == "exact" else 0.3)


@pytest.mark.parametrize(
    ("values", "payload", "message"),
    [
        (np.zeros(4), "exact", r"values float64 \[4\]: .* adds numbers \[4, elements\]"),
        (np.zeros((3, 5)), "exact", r"\[3, 5\]: all-reduce on a 2 x 2 torus"),
        (np.zeros((4, 5), bool), "exact", "values bool"),
        (np.array([["a"]] * 4), "exact", "values <U1"),
        (np.zeros((4, 5)), "bfloat16", "values float64 .* adds float32"),
        (np.zeros((4, 5)), "bflat16", "payload='bflat16' is none of exact, bfloat16"),
    ],
)
def test_other_values_are_refused(values, payload, message) -> None:
    with pytest.raises(ParamError, match=message):
        execute(make_plan("ring", grid((2, 2))), values, payload=payload)


@pytest.mark.parametrize("shape", [(4, 4), (5, 4), (4, 5), (5, 5)])
def test_the_last_row_of_a_torus_and_the_first_are_a_pair(shape) -> None:
    holes = ["2x2@1,1"]
    assert is_exact(make_plan("row_pairs", grid(shape, holes=holes)))
    if shape == (4, 4):
        with pytest.raises(ParamError, match="two adjacent rows or columns"):
            make_plan("row_pairs", grid(shape, kind="line", holes=holes))


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.14159], np.float32)
    expected = [1, 1, 1 + 2**-6, 1 + 2**-7, -3.140625]
    np.testing.assert_array_equal(round_to_bfloat16(values), np.array(expected, np.float32))


def test_an_update_between_reduce_and_gather_computes_each_element_once() -> None:
    plan = multiring(grid((4, 6)))
    values = np.random.default_rng(0).integers(0, 100, (24, 50))
    weights, updated = np.arange(60), []

    def update(total, elements):
        updated.extend(elements.tolist())
        return weights[np.minimum(elements, 59)] - 2 * total

    found = execute(plan, values, update=update)
    np.testing.assert_array_equal(found, np.tile(weights[:50] - 2 * values.sum(0), (24, 1)))
    assert sorted(updated) == list(range(72))  # 24 chunks of 3
    assert [len(chunks) for chunks in owned_chunks(plan).values()] == [1] * 24


def test_a_plan_that_lacks_a_step_is_not_exact() -> None:
    for name in ("ring", "row_pairs"):
        plan = make_plan(name, grid((4, 4), holes=["2x2@0,0"]))
        assert is_exact(plan)
        for i in range(len(plan.reduce)):
            assert not is_exact(plan._replace(reduce=plan.reduce[:i] + plan.reduce[i + 1 :]))


def test_one_chip_has_nothing_to_send() -> None:
    plan = make_plan("ring", grid((1, 1)))
    assert plan.num_steps == 0
    assert is_exact(plan)
    assert owned_chunks(plan)[0].tolist() == [0]


def test_an_unknown_planner_is_refused() -> None:
    with pytest.raises(ParamError, match=r"'rign' is none of ring, .* Did you mean 'ring'\?"):
        make_plan("rign", grid((4,)))
