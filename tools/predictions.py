"""`python -m tools.predictions`: writes the tables of docs/plan.md, and a picture.

Published: each row is a registered experiment on the mesh and with the batch of the publication.
Nothing in the model is fitted to a row, nor to all of them. Ranking: each row is a mesh that
`python -m tools.bench plan` predicted and measured, a line of docs/results/plan_ranking.jsonl.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import pyplot

from lingo.config import registry
from lingo.contract import Experiment, build_experiment
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Estimator
from lingo.inspection.plan.hardware import HARDWARE
from lingo.inspection.plan.workload import workload
from lingo.mesh.rules import Recipe
from lingo.mesh.topology import topology
from tools.studies.page import fill_tables, table

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "plan.md"
PICTURE = DOCS / "images" / "plan_ranking.png"
RANKING = DOCS / "results" / "plan_ranking.jsonl"


class Published(NamedTuple):
    """A time of a step that was published."""

    what: str  # model, and cores of TPU v3
    experiment: str
    batch_size: int
    candidate: Candidate
    seconds: float  # of a step
    source: str


def _mesh(rules: Recipe = "1d", **sizes: int) -> Candidate:
    return Candidate(topology(sizes), rules)


_LINGVO = "Lingvo, tokens a second in `synthetic_packed_input.py`"
_GSHARD = "Lepikhin et al. 2020, steps a second in table 2"


def _gshard(experts: int, layers: int, batch_size: int, steps_per_second: float) -> Published:
    return Published(
        f"GShard, {experts:,} experts, {layers} layers, {experts:,}",
        f"mt.gshard.moe_{experts}e_{layers}l",
        batch_size,
        _mesh(expert=experts),
        1 / steps_per_second,
        _GSHARD,
    )


ROWS = (
    Published(
        "128 billion weights, 128",
        "lm.lingvo_dense.dense_128b",
        16,
        _mesh("2d_finalized", data=8, model=16),
        16 * 1024 / 3.7e3,
        _LINGVO,
    ),
    Published(
        "128 billion weights, 512",
        "lm.lingvo_dense.dense_128b",
        128,
        _mesh("2d_finalized", data=16, model=32),
        128 * 1024 / 18e3,
        _LINGVO,
    ),
    Published(
        "128 billion weights, 2,048",
        "lm.lingvo_dense.dense_128b",
        512,
        _mesh("2d_finalized", data=32, model=64),
        512 * 1024 / 62e3,
        _LINGVO,
    ),
    Published(
        "175 billion weights, 2,048",
        "lm.lingvo_dense.dense_175b",
        1024,
        _mesh("2d_finalized", data=64, model=32),
        1024 * 2048 / 51.5e3,
        _LINGVO,
    ),
    Published(
        "1 trillion weights, 512",
        "lm.lingvo_dense.dense_1t",
        16,
        _mesh("2d_finalized", data=16, model=32),
        16 * 512 / 1.4e3,
        _LINGVO,
    ),
    _gshard(2048, 36, 4096, 0.72),
    _gshard(2048, 12, 4096, 2.15),
    _gshard(512, 36, 1024, 1.05),
    _gshard(512, 12, 1024, 3.28),
    _gshard(128, 36, 1024, 0.67),
    _gshard(128, 12, 1024, 2.16),
    Published(
        "ResNet-50, 2,048",
        "image.resnet.supercomputer",
        32768,
        _mesh(data=2048),
        32768 / 1.05e6,
        "Ying et al. 2018: 1.05 million images a second",
    ),
)


def predict(row: Published) -> tuple[float, float]:
    """Returns the seconds of a step and the bytes on a device of a row, both predicted."""

    def build(more: Sequence[str]) -> Experiment:
        batch = f"train_input.batch_size={row.batch_size}"
        return build_experiment(registry.get(row.experiment, [batch, *more]))

    found = workload(build(()))
    estimate = Estimator(found, HARDWARE["tpu_v3"], build).estimate(row.candidate)
    return estimate.step_seconds, estimate.total_bytes


def tables() -> dict[str, list[str]]:
    """Returns the tables of the page, by their names."""
    return {"published": _published(), "ranking": _ranking()}


def _published() -> list[str]:
    rows = []
    for row in ROWS:
        seconds, num_bytes = predict(row)
        ratio = seconds / row.seconds
        numbers = [f"{seconds:.2g}", f"{row.seconds:.2g}", f"{ratio:.2f}"]
        rows.append([row.what, *numbers, f"{num_bytes / 2**30:.1f}", row.source])
    head = ["model, cores", "predicted, s", "published, s", "ratio", "GiB on a core", "source"]
    return table(head, rows)


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
    figure, axes = pyplot.subplots(figsize=(7, 5), layout="constrained")
    for one in _results():
        point = one["predicted_ms"], one["measured_ms"]
        axes.scatter(*point, color="C0")
        axes.annotate(one["way"], point, (5, -3), textcoords="offset points", fontsize="x-small")
    axes.set(
        title="Step of ten meshes: eight virtual devices that share two cores",
        xlabel="predicted, ms",
        ylabel="measured, ms",
        xscale="log",
        yscale="log",
        xlim=(220, 1300),
    )
    figure.savefig(PICTURE, dpi=120)


def main() -> int:
    """Writes the tables and the picture; returns the exit code."""
    PAGE.write_text(fill_tables(PAGE.read_text(), tables()))
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
