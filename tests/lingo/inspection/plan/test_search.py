"""The ways to run an experiment, and their ranking against published recipes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import pytest

from lingo.config import experiment_index, registry
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment, build_experiment
from lingo.data.derived_input import RepeatedInput
from lingo.datasets import GlyphInput
from lingo.inspection.plan.candidate import Candidate, candidates, limits, meshes
from lingo.inspection.plan.estimate import Estimator
from lingo.inspection.plan.hardware import HARDWARE
from lingo.inspection.plan.search import (
    Ranking,
    _preference,
    batch_settings,
    check_batch,
    least_devices,
    rank,
    rank_own,
)
from lingo.inspection.plan.workload import Workload, workload
from lingo.mesh.topology import topology


def builder(experiment: str, *overrides: str) -> Callable[[Sequence[str]], Experiment]:
    return lambda more: build_experiment(registry.get(experiment, [*overrides, *more]))


@functools.cache
def load(experiment: str, *overrides: str) -> Workload:
    return workload(builder(experiment, *overrides)(()))


def search(experiment: str, hardware: str, num_devices: int, *overrides: str) -> Ranking:
    found, build = load(experiment, *overrides), builder(experiment, *overrides)
    chosen = HARDWARE[hardware]
    return rank(found, Estimator(found, chosen, build), chosen, num_devices)


def test_meshes_are_all_products_of_sizes_that_divide() -> None:
    found = load("lm.source.tiny_moe")
    largest = limits(found, 8)
    assert {axis for axis, size in largest.items() if size > 1} == {
        *("stage", "data", "expert", "sequence", "model")
    }
    axes = [axis for axis, size in largest.items() if size > 1]
    expected = {
        sizes
        for sizes in itertools.product([1, 2, 4, 8], repeat=len(axes))
        if math.prod(sizes) == 8
        and all(
            size <= largest[axis] and (axis == "data" or largest[axis] % size == 0)
            for axis, size in zip(axes, sizes, strict=True)
        )
    }
    meshes_found = [tuple(sizes[axis] for axis in axes) for sizes in meshes(found, 8)]
    assert len(meshes_found) == len(set(meshes_found))
    stage, sequence = axes.index("stage"), axes.index("sequence")
    assert set(meshes_found) == {one for one in expected if min(one[stage], one[sequence]) == 1}


def plan_own(experiment: str) -> Ranking:
    found, build = load(experiment), builder(experiment)
    hardware = HARDWARE["tpu_v3"]
    return rank_own(build(()), Estimator(found, hardware, build), hardware)


def test_every_registered_experiment_is_planned() -> None:
    for experiment in experiment_index.index().entries:
        assert plan_own(experiment).best[0].step_seconds > 0
        assert load(experiment).unknown_residuals == ()


@pytest.mark.parametrize("experiment", ["lm.source.tiny_moe", "lm.source.tiny", "image.unet.blobs"])
def test_the_settings_of_a_candidate_build_it(experiment: str) -> None:
    found, build = load(experiment), builder(experiment)
    ways = list(candidates(found, 4))
    assert len(ways) == len(set(ways))
    for way in ways[:: max(1, len(ways) // 12)]:
        made = build(way.settings(found, {}))
        assert made.runtime.p.shard_update == way.shard_update
        assert made.runtime.topology() == way.mesh
        assert made.p.accumulation_steps == way.accumulation_steps
        made.runtime.layout(made.learner)


def test_pipelines_are_tried_with_repeats_and_accumulation() -> None:
    found = load("lm.source.tiny(num_layers=8)", "train_input.batch_size=16")
    ways = {one for one in candidates(found, 2) if one.num_stages == 2 and not one.shard_update}
    assert {(one.micro_batches, one.repeats, one.accumulation_steps) for one in ways} == {
        (micro_batches, repeats, steps)
        for micro_batches in (2, 4, 8, 16)
        for repeats in (1, 2, 4)
        for steps in (1, 2, 4, 8)
        if micro_batches * steps <= 16
    }


def test_settings_undo_what_the_experiment_has() -> None:
    found, build = (
        load("lm.source.tiny", "accumulation_steps=4"),
        builder("lm.source.tiny", "accumulation_steps=4"),
    )
    way = Candidate(topology({"data": 2}))
    assert build(way.settings(found, {})).p.accumulation_steps == 1


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate(topology({"data": 4, "model": 2}), "2d_finalized", shard_update=True),
        Candidate(topology({"data": 4}), shard_update=True, accumulation_steps=4),
        Candidate(topology({"stage": 2, "data": 2}), micro_batches=4, repeats=2),
    ],
    ids=["mesh", "accumulation", "circular-pipeline"],
)
def test_an_experiment_that_is_set_as_a_candidate_has_its_prediction(candidate: Candidate) -> None:
    hardware = HARDWARE["tpu_v3"]
    experiment = ("lm.source.tiny(num_layers=8)", "train_input.batch_size=16")
    found, build = load(*experiment), builder(*experiment)
    settings = candidate.settings(found, {})
    own, build_own = load(*experiment, *settings), builder(*experiment, *settings)
    ranking = rank_own(build_own(()), Estimator(own, hardware, build_own), hardware)
    assert ranking.best == [Estimator(found, hardware, build).estimate(candidate)]


def test_the_recipe_of_gspmd_is_among_the_fastest_for_its_model() -> None:
    """Lingvo registers 128 billion weights on 256 chips as 16 x 32 cores, batch 128, finalized."""
    batch = "train_input.batch_size=128"
    found = search("lm.lingvo_dense.dense_128b", "tpu_v3", 512, batch)
    ways = [(one.candidate.mesh, one.candidate.rules) for one in found.feasible[:10]]
    assert (topology({"data": 16, "model": 32}), "2d_finalized") in ways
    times = [one.step_seconds for one in found.feasible]
    assert times == pytest.approx(sorted(times), rel=1e-8)


def test_efficientnet_b5_in_batches_of_65536_fits_1024_cores_as_it_is_registered() -> None:
    ranking = plan_own("image.efficientnet.b5_pod")
    (way,) = ranking.feasible
    assert way.candidate.mesh == topology({"data": 1024})
    assert 8 * 2**30 < way.total_bytes < 16 * 2**30
    assert plan_own("image.efficientnet.b5_pod(statistics_over=64, batch_size=524288)").too_large


def test_a_sparse_table_takes_no_gradient_and_no_copy() -> None:
    sparse = plan_own("click.dlrm.dlrm").best[0]
    assert sparse.bytes["weights"] == 446_806_532
    assert sparse.bytes["gradients"] == 71_512_068
    assert sparse.total_bytes < 2**30


def test_experts_of_gshard_are_on_all_devices() -> None:
    """Lepikhin et al. 2020, sec. 3.2: one expert of each layer on each of 128 devices."""
    first = search("mt.gshard.moe_128e_12l", "tpu_v3", 128).feasible[0].candidate
    assert first.mesh == topology({"expert": 128})


@pytest.mark.parametrize(
    ("experiment", "recipe", "place"),
    [
        ("lm.switch.switch_xxl", {"expert": 128, "model": 4}, 4),
        ("lm.switch.switch_c", {"expert": 2048}, 1),
        ("image.resnet.supercomputer", {"data": 2048}, 1),
        ("image.resnet.multipod", {"data": 8192}, 1),
    ],
    ids=["switch-xxl", "switch-c", "resnet", "resnet-multipod"],
)
def test_a_published_mesh_is_among_the_fastest(
    experiment: str, recipe: dict[str, int], place: int
) -> None:
    """Fedus et al. 2022; MLPerf training 0.6 and 0.7, which also updated weights in shards."""
    best = search(experiment, "tpu_v3", math.prod(recipe.values())).best[:place]
    (found,) = [one.candidate for one in best if one.candidate.mesh == topology(recipe)]
    assert found.shard_update


@pytest.mark.parametrize(("num_stages", "published"), [(4, 3.4), (8, 6.3)])
def test_pipelines_are_faster_as_gpipe_measured(num_stages: int, published: float) -> None:
    """Huang et al. 2019, table 2: 48 layers, 32 micro-batches, over 2 stages and 1 micro-batch."""

    def seconds(stages: int, micro_batches: int) -> float:
        sizes = f"num_layers=48, num_stages={stages}, num_micro_batches={micro_batches}"
        experiment, hardware = f"lm.gpipe.transformer_l({sizes})", HARDWARE["tpu_v3"]
        build = builder(experiment)
        estimator = Estimator(load(experiment), hardware, build)
        return rank_own(build(()), estimator, hardware).best[0].step_seconds

    assert seconds(2, 1) / seconds(num_stages, 32) == pytest.approx(published, rel=0.1)


def test_memory_decides_what_fits() -> None:
    found = search("lm.lingvo_dense.dense_8b", "tpu_v3", 8)
    memory = HARDWARE["tpu_v3"].memory_bytes
    assert all(one.total_bytes <= memory for one in found.feasible)
    assert all(one.total_bytes > memory for one in found.too_large)
    assert found.feasible
    assert found.too_large


def test_the_least_number_of_devices_that_is_enough_is_found() -> None:
    build, found = builder("lm.lingvo_dense.dense_8b"), load("lm.lingvo_dense.dense_8b")
    hardware = HARDWARE["tpu_v3"]
    estimator = Estimator(found, hardware, build)
    assert not rank(found, estimator, hardware, 1).feasible
    enough = least_devices(found, estimator, hardware, 1)
    assert enough is not None
    assert not rank(found, estimator, hardware, enough // 2).feasible
    assert rank(found, estimator, hardware, enough).feasible


def test_of_equally_fast_ways_the_simplest_is_first() -> None:
    one = search("lm.source.tiny", "h100", 1).feasible[0]
    parts = one.candidate._replace(accumulation_steps=2)
    seconds = {**one.seconds, "arithmetic": one.seconds["arithmetic"] * (1 - 1e-12)}
    faster = one._replace(candidate=parts, seconds=seconds)
    assert faster.step_seconds < one.step_seconds
    assert _preference(one) < _preference(faster)


def test_parts_of_volumes_are_tried() -> None:
    assert limits(load("image.unet.blobs"), 8)["height"] == 16


def test_micro_batches_that_do_not_divide_the_batch_are_refused() -> None:
    overrides = (
        "Stack=Pipeline(num_stages=2, num_micro_batches=3)",
        "runtime=Mesh(stage=2)",
    )
    build = builder("lm.source.tiny", *overrides)
    found, hardware = load("lm.source.tiny", *overrides), HARDWARE["h100"]
    with pytest.raises(ParamError, match="4 rows cannot be cut into num_micro_batches=3"):
        rank_own(build(()), Estimator(found, hardware, build), hardware)


def test_layers_outside_a_pipeline_compute_no_micro_batches() -> None:
    batch = "train_input.batch_size=16"
    found, build = load("lm.source.tiny", batch), builder("lm.source.tiny", batch)
    estimator, mesh = Estimator(found, HARDWARE["h100"], build), topology({"stage": 2, "model": 2})

    def num_sums(micro_batches: int) -> float:
        way = estimator.estimate(Candidate(mesh, micro_batches=micro_batches))
        kinds = [one.exchange for one in way.exchanges]
        return sum(one.tensors for one in kinds if one.purpose == "activations")

    turns = {2: 3, 8: 9}
    of_a_turn = (num_sums(8) - num_sums(2)) / (turns[8] - turns[2])
    assert num_sums(2) - of_a_turn * turns[2] == pytest.approx(2)  # of the table and of the head


def test_a_number_of_devices_that_nothing_divides_into_is_refused() -> None:
    with pytest.raises(ParamError, match=r"no mesh of 4,096 divides .* data up to 64, height up"):
        search("image.lenet.digits", "tpu_v3", 4096)


def test_a_pipeline_is_idle_as_its_schedule_says() -> None:
    experiment, batch = "lm.source.tiny(num_layers=8)", "train_input.batch_size=32"
    found = load(experiment, batch)
    estimator = Estimator(found, HARDWARE["tpu_v3"], builder(experiment, batch))
    mesh = topology({"stage": 4})
    few, many, repeated = (
        estimator.estimate(Candidate(mesh, micro_batches=m, repeats=r))
        for m, r in ((4, 1), (32, 1), (32, 2))
    )
    assert [few.bubble, many.bubble, repeated.bubble] == [3 / 7, 3 / 35, 3 / 67]
    times = [one.seconds["arithmetic"] + one.seconds["bubble"] for one in (few, many, repeated)]
    assert times == sorted(times, reverse=True)
    assert few.flops / many.flops == pytest.approx(
        (_in_stack(found) * 7 / 4 + _outside(found))
        / (_in_stack(found) * 35 / 32 + _outside(found))
    )


def _in_stack(found: Workload) -> float:
    """Returns the FLOPs of a step in the stack on a stage: forward, twice backward, once again."""
    return sum(4 * n * unit.flops / 4 for unit, n in found.units.items() if unit.in_stack)


def _outside(found: Workload) -> float:
    return sum(3 * n * unit.flops for unit, n in found.units.items() if not unit.in_stack)


# ---- the size of the batch, also inside other inputs


def settings(data: Params) -> list[str]:
    params = registry.get("image.resnet.glyphs", []).params
    params.train_input = data
    return batch_settings(params, 8)


def test_sizes_that_are_set_are_set() -> None:
    inner = GlyphInput.params(batch_size=4)
    assert settings(inner) == ["train_input.batch_size=8"]
    assert settings(RepeatedInput.params(input=inner)) == ["train_input.input.batch_size=8"]


def test_an_input_without_a_size_is_refused() -> None:
    with pytest.raises(ParamError, match="--batch=8: RepeatedInput sets no batch_size"):
        settings(RepeatedInput.params(input=GlyphInput.params()))


def test_an_input_that_makes_another_size_is_refused() -> None:
    resolved = registry.get("image.resnet.glyphs", [])
    experiment = build_experiment(resolved)
    check_batch(experiment, resolved.params.train_input.batch_size)
    with pytest.raises(ParamError, match=r"--batch=8: .* batch of .*, which stays 64: set"):
        check_batch(experiment, 8)
