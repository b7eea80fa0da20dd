"""`python -m tools.predictions`: writes the table of docs/plan.md, predicted against published.

Each row is a registered experiment on the mesh and with the batch of the publication. Nothing in
the model is fitted to a row, nor to all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lingo.config import registry
from lingo.contract import Experiment, build_experiment
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Estimator
from lingo.inspection.plan.hardware import HARDWARE
from lingo.inspection.plan.workload import workload
from lingo.mesh.rules import Recipe
from lingo.mesh.topology import topology
from tools.studies.page import fill_tables, table

PAGE = Path(__file__).parent.parent / "docs" / "plan.md"


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
    """Returns the table of the page, by its name."""
    rows = []
    for row in ROWS:
        seconds, num_bytes = predict(row)
        ratio = seconds / row.seconds
        numbers = [f"{seconds:.2g}", f"{row.seconds:.2g}", f"{ratio:.2f}"]
        rows.append([row.what, *numbers, f"{num_bytes / 2**30:.1f}", row.source])
    head = ["model, cores", "predicted, s", "published, s", "ratio", "GiB on a core", "source"]
    return {"published": table(head, rows)}


def main() -> int:
    """Writes the table; returns the exit code."""
    PAGE.write_text(fill_tables(PAGE.read_text(), tables()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
