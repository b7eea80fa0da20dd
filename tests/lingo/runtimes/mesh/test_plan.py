"""Predictions of plans against the programs that XLA makes for eight devices."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from lingo.config import registry
from lingo.config.registry import ResolvedExperiment
from lingo.contract import Experiment, build_experiment
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Estimator
from lingo.inspection.plan.hardware import HARDWARE
from lingo.inspection.plan.report import compare, processor_estimator
from lingo.inspection.plan.table import comparisons_text
from lingo.inspection.plan.workload import workload
from lingo.mesh.topology import topology
from lingo.models.image.amoebanet_cell import NormalCellB

LANGUAGE, EXPERTS = "lm.source.tiny", "lm.source.tiny_moe"
DEEP = "lm.source.tiny(num_layers=8)"
RESNET, UNET = "image.resnet.glyphs", "image.unet.blobs"


def way(axes: str, rules: str = "1d", **fields: object) -> Candidate:
    """Returns a way on a mesh that is given as text: `data=2 model=4`."""
    sizes = {name: int(size) for name, size in (one.split("=") for one in axes.split())}
    return Candidate(topology(sizes), rules, **fields)  # pyright: ignore[reportArgumentType]


def case(
    name: str,
    experiment: str,
    candidate: Candidate,
    total: float,
    exchanged: float,
):
    """Returns a form, with bounds of the relative differences of bytes in all, and exchanged."""
    return pytest.param(experiment, candidate, total, exchanged, id=name)


TEN = [
    case("data", LANGUAGE, way("data=8"), 0.1, 0.01),
    case("model", LANGUAGE, way("data=2 model=4"), 0.1, 0.01),
    case("experts", EXPERTS, way("data=2 expert=4"), 0.1, 0.01),
    case("stages", LANGUAGE, way("stage=4 data=2", micro_batches=8), 0.1, 0.05),
    case("sharded-update", LANGUAGE, way("data=8", shard_update=True), 0.1, 0.01),
    case(
        "sharded-weights",
        LANGUAGE,
        way("data=8", shard_update=True, shard_weights=True),
        0.1,
        0.01,
    ),
    case("remat", LANGUAGE, way("data=8", remat=True), 0.1, 0.01),
    case(
        "accumulation",
        LANGUAGE,
        way("data=4", shard_update=True, shard_weights=True, accumulation_steps=4),
        0.1,
        0.01,
    ),
    case("images", RESNET, way("data=8"), 0.1, 0.1),
    case("rows-of-images", RESNET, way("data=2 height=4"), 0.1, 0.05),
]
OTHERS = [
    case(
        "stages-and-accumulation",
        LANGUAGE,
        way("stage=4 data=2", micro_batches=4, accumulation_steps=2),
        0.1,
        0.05,
    ),
    case("weights-2d", LANGUAGE, way("data=2 model=4", "2d_attempt_2"), 0.1, 0.05),
    case("activations-2d", LANGUAGE, way("data=2 model=4", "2d_finalized"), 0.1, 0.05),
    case("sequence", LANGUAGE, way("data=2 sequence=4"), 0.1, 0.01),
    case("sequence-and-model", LANGUAGE, way("data=2 sequence=2 model=2"), 0.1, 0.1),
    case("experts-and-model", EXPERTS, way("expert=4 model=2"), 0.1, 0.01),
    case("rows-of-volumes", UNET, way("data=2 height=4"), 0.1, 0.05),
    case("stages-of-two-layers", DEEP, way("stage=4 data=2", micro_batches=8), 0.1, 0.05),
    case(
        "circular-stages",
        DEEP,
        way("stage=4 data=2", micro_batches=8, repeats=2),
        0.1,
        0.05,
    ),
    case(
        "stages-and-sharded-weights",
        DEEP,
        way("stage=4 data=2", shard_update=True, shard_weights=True, micro_batches=8),
        0.1,
        0.05,
    ),
    case(
        "circular-stages-and-sharded-weights",
        DEEP,
        way("stage=4 data=2", shard_update=True, shard_weights=True, micro_batches=8, repeats=2),
        0.1,
        0.1,
    ),
    case("remat-2d", LANGUAGE, way("data=2 model=4", "2d_finalized", remat=True), 0.15, 0.1),
]


def means(more: Sequence[str]) -> ResolvedExperiment:
    """Returns LeNet with the mean of each window in place of the maximum."""
    return registry.get("image.lenet.digits", ["ConvPool.pool=AveragePool", *more])


def cell(more: Sequence[str]) -> ResolvedExperiment:
    """Returns a stem, a cell of AmoebaNet-B and a head."""
    resolved = registry.get("image.amoebanet.digits", more)
    layers = resolved.params.task.model.layers
    normal = NormalCellB.params(dim=16, before_dim=16, num_filters=16)
    layers[:] = [layers[0].set(output_dim=16), normal, layers[-1].set(dim=64)]
    return resolved


@pytest.mark.parametrize("form", [means, cell])
def test_bytes_of_small_networks_of_images_are_close_to_the_compiled_program(
    form: Callable[[Sequence[str]], ResolvedExperiment],
) -> None:
    def build(more: Sequence[str]) -> Experiment:
        return build_experiment(form(["train_input.batch_size=64", *more]))

    found, candidate = workload(build(())), way("data=2")
    estimate = Estimator(found, HARDWARE["h100"], build).estimate(candidate)
    compared = compare(estimate, build(candidate.settings(found, {})))
    assert abs({one.name: one for one in compared}["bytes in all"].difference) < 0.1


@pytest.mark.parametrize(("experiment", "candidate", "total", "exchanged"), [*TEN, *OTHERS])
def test_a_prediction_is_close_to_the_compiled_program(
    experiment: str, candidate: Candidate, total: float, exchanged: float
) -> None:
    batch_size = 64 if experiment == RESNET else 16

    def build(more: Sequence[str]) -> Experiment:
        return build_experiment(
            registry.get(experiment, [f"train_input.batch_size={batch_size}", *more])
        )

    found = workload(build(()))
    estimate = Estimator(found, HARDWARE["h100"], build).estimate(candidate)
    compared = compare(estimate, build(candidate.settings(found, {})))
    differences = {one.name: abs(one.difference) for one in compared}
    assert differences["bytes of arguments"] < 1e-3
    assert differences["FLOPs of products"] < 0.1
    assert differences["bytes exchanged"] < exchanged
    assert differences["bytes in all"] < total
    header, *lines = comparisons_text(compared).splitlines()
    assert header.split()[-3:] == ["predicted", "compiled", "difference"]
    assert [line.split()[0] for line in lines[: len(compared)]] == [
        one.name.split()[0] for one in compared
    ]


def test_what_computes_in_bfloat16_is_compared_in_float32() -> None:
    def build(more: Sequence[str]) -> Experiment:
        overrides = ["train_input.batch_size=16", "task.dtype=bfloat16", *more]
        return build_experiment(registry.get(LANGUAGE, overrides))

    found, hardware, candidate = workload(build(())), HARDWARE["h100"], way("data=2 model=4")
    experiment = build(candidate.settings(found, {}))
    narrow = Estimator(found, hardware, build).estimate(candidate)
    wide = processor_estimator(hardware, build).estimate(candidate)
    assert narrow.total_bytes < 0.8 * wide.total_bytes
    differences = {one.name: abs(one.difference) for one in compare(wide, experiment)}
    assert differences["bytes of arguments"] < 1e-3
    assert differences["bytes exchanged"] < 0.05
    assert differences["bytes in all"] < 0.1


def test_a_plan_for_tpus_is_close_to_what_their_compiler_makes() -> None:
    def build(more: Sequence[str]) -> Experiment:
        overrides = ["train_input.batch_size=256", "task.dtype=bfloat16", *more]
        return build_experiment(registry.get("lm.source.tiny(model_dim=512)", overrides))

    candidate = way("data=8", remat=True)
    estimator = Estimator(workload(build(())), HARDWARE["tpu_v5e"], build)
    estimate = estimator.estimate(candidate)
    experiment = build(candidate.settings(workload(build(())), {}))
    compared = compare(estimate, experiment, "v5e:2x4")
    differences = {one.name: abs(one.difference) for one in compared}
    assert differences["bytes of arguments"] < 1e-3
    assert differences["bytes of temporaries"] < 0.05
    assert differences["bytes exchanged"] < 1e-3
    assert differences["FLOPs of products"] < 0.1


def test_a_program_combines_the_sums_of_a_layer_in_a_loop_as_planned() -> None:
    def build(more: Sequence[str]) -> Experiment:
        overrides = ["train_input.batch_size=16", "Stack=Repeat", *more]
        return build_experiment(registry.get(LANGUAGE, overrides))

    found, candidate = workload(build(())), way("data=8")
    (sums,) = Estimator(found, HARDWARE["h100"], build).estimate(candidate).exchanges
    experiment = build(candidate.settings(found, {}))
    compiled = experiment.runtime.compile_program(
        experiment.learner, experiment.train_input.specs()
    )
    lines = [line for line in compiled.text.splitlines() if " all-reduce(" in line]
    gradients = [line for line in lines if "/gradient_tape/" in line]
    in_loop = [line for line in gradients if "/stack/while/gradients/" in line]
    number = len(gradients) + (found.num_steps - 1) * len(in_loop)
    assert sums.exchange.collectives == number == 4 + 1


def test_a_trillion_weights_are_compiled_for_2048_devices() -> None:
    flags = "--exp=lm.lingvo_dense.dense_1t --devices=2048 --hardware=tpu_v3 --top=1 --verify"
    code = (
        "import pathlib, sys; from lingo.cli.main import main;"
        f"code = main(['plan', *{flags.split()}, '--format=json']);"
        "print(pathlib.Path('/proc/self/status').read_text(), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["verified_dtype"] == "float32"
    assert len(found["verified"]) == 2
    for rows in found["verified"].values():
        ratios = {row["name"]: row["prediction"] / row["program"] for row in rows}
        assert ratios["bytes of arguments"] == pytest.approx(1, abs=1e-3)
        assert ratios["bytes in all"] == pytest.approx(1, abs=0.1)
    (peak,) = [line.split() for line in done.stderr.splitlines() if line.startswith("VmHWM")]
    assert int(peak[1]) * 1024 < 4 * 2**30  # "VmHWM: 2444836 kB"
