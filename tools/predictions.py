"""`python -m tools.predictions`: writes tables of three pages, docs/plan*.md and allreduce.md.

It also draws a picture.

Published: each row is a registered experiment on the mesh and with the batch of the publication.
Nothing in the model is fitted to a row, nor to all of them. Recipes: the place of published meshes
among all. Pipelines: the speed-ups of GPipe. Scaling: machines of PowerAI DDL. Ranking: each row is
a mesh that `python -m tools.bench plan` predicted and measured, a line of
docs/results/plan_ranking.jsonl.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import pyplot
from matplotlib.ticker import NullFormatter

from lingo.config import registry
from lingo.contract import Experiment, build_experiment
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Estimate, Estimator
from lingo.inspection.plan.hardware import HARDWARE, Hardware
from lingo.inspection.plan.search import Ranking, rank, rank_own
from lingo.inspection.plan.table import describe
from lingo.inspection.plan.workload import Workload, workload
from lingo.mesh.allreduce.cost import measure
from lingo.mesh.allreduce.grid import Axis, make_grid
from lingo.mesh.allreduce.planner import make_plan
from lingo.mesh.rules import Recipe
from lingo.mesh.topology import topology
from tools.studies.page import fill_tables, table

DOCS = Path(__file__).parent.parent / "docs"
PAGES = (DOCS / "plan.md", DOCS / "plan_accuracy.md", DOCS / "allreduce.md")
PICTURE = DOCS / "images" / "plan_ranking.png"
RANKING = DOCS / "results" / "plan_ranking.jsonl"

TPU = HARDWARE["tpu_v3"]
P100 = HARDWARE["p100"]


class Run(NamedTuple):
    """A model on a mesh of cores of TPU v3, as it was published."""

    model: str
    experiment: str
    batch_size: int
    candidate: Candidate

    @property
    def cores(self) -> str:
        return f"{self.candidate.mesh.num_devices:,}"


class Published(NamedTuple):
    """A time of a step that was published."""

    run: Run
    seconds: float  # of a step
    source: str


class SpeedUp(NamedTuple):
    """How much faster a pipeline is than one of two stages and one micro-batch."""

    num_stages: int
    num_micro_batches: int
    factor: float  # that was measured


class Replicas(NamedTuple):
    """A model that GPUs train with a part of each batch."""

    model: str
    experiment: str
    images: int  # of a GPU in a step
    seconds: float | None = None  # of a step on the most GPUs, published


def _mesh(rules: Recipe = "1d", **sizes: int) -> Candidate:
    return Candidate(topology(sizes), rules)


def _sharded(**sizes: int) -> Candidate:
    return Candidate(topology(sizes), shard_update=True)


_LINGVO = "Lingvo, tokens a second in `synthetic_packed_input.py`"
_GSHARD = "Lepikhin et al. 2020, steps a second in table 2"


def _dense(weights: str, name: str, batch_size: int, **sizes: int) -> Run:
    experiment = f"lm.lingvo_dense.{name}"
    return Run(f"{weights} weights", experiment, batch_size, _mesh("2d_finalized", **sizes))


def _gshard(experts: int, layers: int, batch_size: int) -> Run:
    return Run(
        f"GShard, {experts:,} experts, {layers} layers",
        f"mt.gshard.moe_{experts}e_{layers}l",
        batch_size,
        _mesh(expert=experts),
    )


DENSE_128B = _dense("128 billion", "dense_128b", 128, data=16, model=32)
DENSE_175B = _dense("175 billion", "dense_175b", 1024, data=64, model=32)
GSHARD_600B = _gshard(2048, 36, 4096)
RESNET = Run("ResNet-50", "image.resnet.supercomputer", 32768, _sharded(data=2048))
MULTIPOD = Run("ResNet-50", "image.resnet.multipod", 65536, _sharded(data=8192))
SSD = Run("SSD, ResNet-34", "image.ssd.r34", 2048, _sharded(data=512, height=4))
SWITCH_XXL = Run("Switch-XXL", "lm.switch.switch_xxl", 2048, _mesh(expert=128, model=4))
SWITCH_C = Run("Switch-C", "lm.switch.switch_c", 2048, _mesh(expert=2048))
TRANSFORMER_L = Run(
    "GPipe's Transformer-L, 104 layers",
    "lm.gpipe.transformer_l(num_layers=104)",
    32,
    _mesh(stage=8)._replace(micro_batches=32),
)
EFFICIENTNET = Run(
    "EfficientNet-B5",
    'image.efficientnet.b5(batch_size=65536, optimizer="lars")',
    65536,
    _mesh(data=1024),
)

ROWS = (
    Published(
        _dense("128 billion", "dense_128b", 16, data=8, model=16), 16 * 1024 / 3.7e3, _LINGVO
    ),
    Published(DENSE_128B, 128 * 1024 / 18e3, _LINGVO),
    Published(
        _dense("128 billion", "dense_128b", 512, data=32, model=64), 512 * 1024 / 62e3, _LINGVO
    ),
    Published(DENSE_175B, 1024 * 2048 / 51.5e3, _LINGVO),
    Published(_dense("1 trillion", "dense_1t", 16, data=16, model=32), 16 * 512 / 1.4e3, _LINGVO),
    Published(GSHARD_600B, 1 / 0.72, _GSHARD),
    Published(_gshard(2048, 12, 4096), 1 / 2.15, _GSHARD),
    Published(_gshard(512, 36, 1024), 1 / 1.05, _GSHARD),
    Published(_gshard(512, 12, 1024), 1 / 3.28, _GSHARD),
    Published(_gshard(128, 36, 1024), 1 / 0.67, _GSHARD),
    Published(_gshard(128, 12, 1024), 1 / 2.16, _GSHARD),
    Published(
        RESNET._replace(candidate=_mesh(data=2048)),
        32768 / 1.05e6,
        "Ying et al. 2018: 1.05 million images a second",
    ),
    Published(RESNET, 76.947 / 2983, "MLPerf 0.6: 2,983 steps in 76.9 s"),
    Published(MULTIPOD, 28.885 / 1738, "MLPerf 0.7: 1,738 steps in 28.9 s"),
    Published(SSD, 72.411 / 4580, "MLPerf 0.6: 80 epochs, 4,580 steps, in 72.4 s"),
    Published(
        EFFICIENTNET,
        64 * 60 / (350 * 1_281_167 / 65536),
        "Wongpanich et al. 2020: 64 minutes, of 350 epochs",
    ),
)

RECIPES = (
    DENSE_128B,
    DENSE_175B,
    GSHARD_600B,
    _gshard(128, 12, 1024),
    SWITCH_XXL,
    SWITCH_C,
    RESNET,
    MULTIPOD,
    SSD,
    TRANSFORMER_L,
)

SPEED_UPS = (SpeedUp(4, 32, 3.4), SpeedUp(8, 32, 6.3))
"""Huang et al. 2019, table 2: a Transformer of 48 layers."""


REPLICAS = (
    # 90 epochs of ImageNet in 50 minutes
    Replicas("ResNet-50", "image.resnet.resnet50", 32, 50 * 60 / (90 * 1_281_167 / 8192)),
    Replicas("ResNet-101, 22,000 classes", "image.resnet.resnet101_22k", 20),
)
"""Cho et al. 2017 (PowerAI DDL), on 64 machines of four P100."""
NUM_GPUS = (4, 16, 64, 256)


def _plan(run: Run, hardware: Hardware = TPU) -> tuple[Workload, Estimator]:
    """Returns what a run computes, and the estimator of its experiment."""

    def build(more: Sequence[str]) -> Experiment:
        batch = f"train_input.batch_size={run.batch_size}"
        return build_experiment(registry.get(run.experiment, [batch, *more]))

    found = workload(build(()))
    return found, Estimator(found, hardware, build)


def predict(run: Run) -> Estimate:
    """Returns the prediction of a run."""
    _, estimator = _plan(run)
    return estimator.estimate(run.candidate)


def tables() -> dict[str, list[str]]:
    """Returns the tables of the pages, by their names."""
    return {
        "published": _published(),
        "recipes": _recipes(),
        "pipelines": _pipelines(),
        "scaling": _scaling(),
        "ranking": _ranking(),
    }


def _published() -> list[str]:
    rows = []
    for run, seconds, source in ROWS:
        found = predict(run)
        ratio = found.step_seconds / seconds
        numbers = [f"{found.step_seconds:.2g}", f"{seconds:.2g}", f"{ratio:.2f}"]
        numbers += [f"{found.utilization:.0%}", f"{ratio * found.utilization:.0%}"]
        numbers.append(f"{found.total_bytes / 2**30:.1f}")
        rows.append([run.model, run.cores, *numbers, source])
    times = ["predicted, s", "published, s", "ratio"]
    shares = ["utilization, predicted", "published"]
    return table(["model", "cores", *times, *shares, "GiB on a core", "source"], rows)


def _recipes() -> list[str]:
    rows = []
    for run in RECIPES:
        found, estimator = _plan(run)
        own = estimator.estimate(run.candidate)
        ranking = rank(found, estimator, TPU, run.candidate.mesh.num_devices)
        head = [run.model, run.cores, describe(run.candidate), f"{own.total_bytes / 2**30:.1f}"]
        rows.append([*head, *_place(run.candidate, ranking)])
    heads = ["model", "cores", "recipe", "GiB on a core", "place of its mesh", "best on it"]
    return table([*heads, "slower than the first", "which is"], rows)


def _place(recipe: Candidate, ranking: Ranking) -> list[str]:
    """Returns the place of a recipe's mesh among the best ways of each, and the way on it."""
    if not ranking.feasible:
        return ["none fits", "-", "-", "-"]
    best = ranking.best
    places = {one.candidate.mesh: (i, one) for i, one in enumerate(best, 1)}
    if recipe.mesh not in places:
        return ["does not fit", "-", "-", describe(best[0].candidate)]
    place, way = places[recipe.mesh]
    slower = way.step_seconds / best[0].step_seconds - 1
    ways = [describe(one.candidate) for one in (way, best[0])]
    return [f"{place} of {len(best)}", ways[0], f"{slower:.0%}", ways[1]]


def _pipelines() -> list[str]:
    slowest = _pipeline_seconds(num_stages=2, num_micro_batches=1)
    rows = []
    for stages, micro_batches, factor in SPEED_UPS:
        seconds = _pipeline_seconds(num_stages=stages, num_micro_batches=micro_batches)
        rows.append([str(stages), str(micro_batches), f"{slowest / seconds:.2f}", str(factor)])
    return table(["stages", "micro-batches", "predicted", "published"], rows)


def _pipeline_seconds(**sizes: int) -> float:
    """Returns the time of a step of a Transformer of 48 layers in a pipeline."""

    def build(more: Sequence[str]) -> Experiment:
        name = f"lm.gpipe.transformer_l({', '.join(f'{k}={v}' for k, v in sizes.items())})"
        return build_experiment(registry.get(name, ["exp.num_layers=48", *more]))

    experiment = build(())
    estimator = Estimator(workload(experiment), TPU, build)
    return rank_own(experiment, estimator, TPU).best[0].step_seconds


def _scaling() -> list[str]:
    rows = []
    for one in REPLICAS:
        _, estimator = _plan(Run(one.model, one.experiment, one.images, _mesh()), P100)
        seconds = estimator.estimate(_mesh()).seconds
        alone = seconds["arithmetic"] + seconds["update"]
        for num_gpus in NUM_GPUS:
            exchange = _allreduce_seconds(num_gpus, _num_weights(one.experiment))
            measured = one.seconds if num_gpus == NUM_GPUS[-1] else None
            rows.append(
                [
                    one.model,
                    str(num_gpus),
                    f"{1e3 * alone:.0f}",
                    f"{1e3 * exchange:.1f}",
                    f"{alone / (alone + exchange):.0%}",
                    "-" if measured is None else f"{1 - exchange / measured:.0%}",
                ]
            )
    times = ["arithmetic at the peak, ms", "all-reduce, ms"]
    return table(["model", "GPUs", *times, "efficiency", "at the published step"], rows)


def _num_weights(experiment: str) -> int:
    task = build_experiment(registry.get(experiment, [])).task
    return sum(spec.size for spec in task.weights().values())


def _allreduce_seconds(num_gpus: int, num_elements: int) -> float:
    """Returns the predicted time of a sum of float32 over GPUs, in machines of four."""
    inner, outer = P100.dimensions
    sizes = [size for size in (num_gpus // inner.size, inner.size) if size > 1]
    sides = [outer, inner][-len(sizes) :]
    axes = [
        Axis(size, side.kind, side.latency, side.bandwidth)
        for size, side in zip(sizes, sides, strict=True)
    ]
    return measure(make_plan("multiring", make_grid(axes)), num_elements).seconds


def _ranking() -> list[str]:
    rows = [
        [
            one["way"],
            f"{one['predicted_ms']:.0f}",
            f"{one['measured_ms']:.0f}",
            f"{one['predicted_ms'] / one['measured_ms']:.2f}",
        ]
        for one in sorted(_results(), key=lambda one: one["predicted_ms"])
    ]
    return table(["mesh", "predicted, ms", "measured, ms", "ratio"], rows)


def _results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RANKING.read_text().splitlines()]


def draw() -> None:
    """Draws the measured times of the ranking over the predicted ones."""
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    axes.plot((200, 900), (200, 900), "--", color="0.6", linewidth=1)
    axes.annotate("as predicted", (640, 560), color="0.4", fontsize="small")
    line = {"arrowstyle": "-", "color": "0.7", "linewidth": 0.7, "relpos": (0, 0.5)}
    results = sorted(_results(), key=lambda one: one["measured_ms"])
    for i, one in enumerate(results):  # labels in a column, in the order of the points
        point = one["predicted_ms"], one["measured_ms"]
        axes.scatter(*point, color="C0", zorder=2)
        axes.annotate(
            one["way"],
            point,
            (1.03, 0.4 + 0.6 * i / len(results)),
            textcoords="axes fraction",
            fontsize="small",
            va="center",
            arrowprops=line,
        )
    axes.set(
        title="Step of ten meshes: eight virtual devices that share two cores",
        xlabel="predicted, ms",
        ylabel="measured, ms",
        xscale="log",
        yscale="log",
        xlim=(200, 900),
        ylim=(200, 2500),
    )
    for axis, ticks in (
        (axes.xaxis, (200, 300, 400, 600, 800)),
        (axes.yaxis, (250, 500, 1e3, 2e3)),
    ):
        axis.set_ticks(ticks)
        axis.set_major_formatter("{x:,.0f}")
        axis.set_minor_formatter(NullFormatter())
    figure.savefig(PICTURE, dpi=120)


def main() -> int:
    """Writes the tables and the picture; returns the exit code."""
    filled = tables()
    for page in PAGES:
        page.write_text(fill_tables(page.read_text(), filled))
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
