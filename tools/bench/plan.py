"""Ten meshes of `lm.source.tiny` on eight virtual devices: predicted and measured times of a step.

The devices are measured first (`lingo plan --calibrate`), then each mesh is predicted and trained
by the real command. Kendall's tau compares the order of the meshes. The devices share this
machine's cores, so the times themselves say nothing about a machine with eight. They are kept in
docs/results/plan_ranking.jsonl; `python -m tools.predictions` draws a table and a picture from it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from lingo.config import registry
from lingo.contract import Experiment, build_experiment
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Estimator
from lingo.inspection.plan.hardware import read
from lingo.inspection.plan.table import describe
from lingo.inspection.plan.workload import workload
from lingo.mesh.topology import topology
from tools.harness import Report, at_least, choose
from tools.predictions import RANKING

EXPERIMENT = choose("lm.source.tiny", small="lm.source.tiny(model_dim=16, num_layers=2)")
NUM_DEVICES = choose(8, small=2)
NUM_STEPS = choose(24, small=3)
UNTIMED = choose(4, small=1)  # steps at the beginning that are not timed
RESULTS = choose(RANKING, small=None)  # the file of the times; None: none is written
SETTINGS = ("train_input.batch_size=32", f"max_steps={NUM_STEPS}", "eval_inputs={}")
UNCHANGED = ("summary.every_steps=1", "summary.histograms=False", "evaluate.prompts=[]")

WAYS = choose(
    (
        Candidate(topology({"data": 8})),
        Candidate(topology({"data": 8}), shard_update=True, shard_weights=True),
        Candidate(topology({"data": 4, "model": 2})),
        Candidate(topology({"data": 2, "model": 4})),
        Candidate(topology({"model": 8})),
        Candidate(topology({"data": 4, "model": 2}), "2d_finalized"),
        Candidate(topology({"model": 8}), "2d_finalized"),
        Candidate(topology({"data": 4, "sequence": 2})),
        Candidate(topology({"data": 2, "sequence": 4})),
        Candidate(topology({"data": 4, "stage": 2}), micro_batches=4),
    ),
    small=(Candidate(topology({"data": 2})), Candidate(topology({"stage": 2}), micro_batches=4)),
)


def run(report: Report) -> None:
    """Predicts and measures all ways, and compares their order."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "here.json"
        _lingo("plan", f"--calibrate={file}", f"--devices={NUM_DEVICES}")
        hardware, found = read(str(file)), workload(_build(()))
        estimator = Estimator(found, hardware, _build)
        pairs: list[tuple[float, float]] = []
        report.table("way", "predicted, measured ms a step")
        for i, way in enumerate(WAYS):
            predicted = 1e3 * estimator.estimate(way).step_seconds
            measured = _measure(way.settings(found, {}), Path(folder) / str(i))
            pairs.append((predicted, measured))
            note = f"{predicted:8.1f} {measured:8.1f}"
            report.line(describe(way), predicted / measured, note=note)
        lines = [
            {"way": describe(way), "predicted_ms": round(p, 1), "measured_ms": round(m, 1)}
            for way, (p, m) in zip(WAYS, pairs, strict=True)
        ]
        if RESULTS is not None:
            RESULTS.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        tau: Any = stats.kendalltau(*np.array(pairs).T)
        report.line("Kendall's tau of the order", tau.statistic, at_least(0.7))


def _build(settings: Sequence[str]) -> Experiment:
    return build_experiment(registry.get(EXPERIMENT, [*SETTINGS, *settings]))


def _measure(settings: Sequence[str], run_directory: Path) -> float:
    """Returns the median of the milliseconds of a step."""
    flags = [f"--set={text}" for text in (*SETTINGS, *UNCHANGED, *settings)]
    _lingo(
        "train",
        f"--exp={EXPERIMENT}",
        f"--logdir={run_directory}",
        f"--devices={NUM_DEVICES}",
        *flags,
    )
    rows = map(json.loads, (run_directory / "metrics.jsonl").read_text().splitlines())
    times = [row["perf/step_time_ms"] for row in rows if "perf/step_time_ms" in row]
    return float(np.median(times[UNTIMED:]))


def _lingo(*arguments: str) -> None:
    program = [sys.executable, "-m", "lingo.cli.main", *arguments]
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
