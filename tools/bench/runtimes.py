"""One experiment on every runtime: `lm.source.tiny`, 20 steps with dropout, by the real commands.

    lingo train --exp=lm.source.tiny --set=runtime=...                   # one process
    lingo launch --workers=2 -- train --exp=lm.source.tiny ...        # two

Then each runtime's processes read the checkpoints of all, and count the elements that are equal bit
by bit. The table shows, per runtime, the largest relative difference between its losses and one
device's, how many checkpoints are equal, and milliseconds per step. On the cores of one machine the
milliseconds measure the cost of virtual devices, no more.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lingo
from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint
from lingo.cli.workers import free_addresses
from lingo.learner.state import initial_state, named_tensors, restore_state
from lingo.processes.processes import VARIABLE
from lingo.storage.shards import Shards
from tools.harness import Report, at_least, at_most, choose

EXPERIMENT = choose("lm.source.tiny", small="lm.source.tiny(model_dim=16, num_layers=1)")
NUM_STEPS = choose(20, small=3)
SETTINGS = (
    "TransformerLayer.dropout_rate=0.1",
    "eval_inputs['heldout'].max_batches=2",
    "eval_inputs['keras'].max_batches=2",
    f"max_steps={NUM_STEPS}",
    "summary.every_steps=1",
    "summary.histograms=False",
)
TOLERANCE = 1e-5  # of losses, relative
UNTIMED = choose(5, small=1)  # steps at the beginning that are not timed

_ROOT = Path(__file__).parents[2]


class Row(NamedTuple):
    """A runtime, its number of processes, and the number of virtual devices per process."""

    mesh: str
    num_workers: int = 1
    num_devices: int = 1

    @property
    def folder(self) -> str:
        """Name of its run directory."""
        words = (self.mesh, str(self.num_workers), str(self.num_devices))
        return "_".join(words).translate(str.maketrans("(),=", "____"))


ROWS = choose(
    (
        Row("Local"),
        Row("Replicated", 1, 2),
        Row("Replicated", 2, 1),
        Row("Mesh(data=8)", 1, 8),
        Row("Mesh(data=2,model=4)", 1, 8),
        Row("Mesh(data=2,model=2,shard_weights=True)", 1, 4),
        Row("Mesh(data=4,shard_update=True)", 1, 4),
        Row("Mesh(data=2,model=4)", 2, 4),
    ),
    small=(Row("Local"), Row("Replicated", 2, 1)),
)


def run(report: Report) -> None:
    """Compares every runtime with the first."""
    with tempfile.TemporaryDirectory() as folder:
        compare(ROWS, Path(folder), report)


def compare(
    rows: tuple[Row, ...], folder: Path, report: Report, settings: tuple[str, ...] = SETTINGS
) -> None:
    """Trains the experiment on each runtime, reads each checkpoint on each, and compares.

    `settings` are overrides of the experiment.
    """
    for row in rows:
        _train(row, folder, settings)
    expected = _read_metric(rows[0], folder, "loss/total")
    report.table("runtime, processes, devices of each", "ms per step")
    for row in rows:
        losses = _read_metric(row, folder, "loss/total")
        times = _read_metric(row, folder, "perf/step_time_ms")[UNTIMED:]
        difference = 1e6 * np.abs(losses / expected - 1.0).max()
        num_equal = _num_equal(row, [folder / other.folder for other in rows], settings)
        report.line(
            f"{row.folder}: losses, 1e-6",
            float(difference),
            at_most(1e6 * TOLERANCE),
            note=f"{np.median(times):7.0f}",
        )
        report.line(f"{row.folder}: read", num_equal, at_least(len(rows)), note=f"of {len(rows)}")


# ---- training ------------------------------------------------------------------------------------


def _train(row: Row, folder: Path, settings: tuple[str, ...]) -> None:
    """Trains by the command that a user would type."""
    flags = [f"--set={text}" for text in (*settings, f"runtime={row.mesh}")]
    command = ["train", f"--exp={EXPERIMENT}", f"--logdir={folder / row.folder}", *flags]
    if row.num_devices > 1:
        command.append(f"--devices={row.num_devices}")
    if row.num_workers > 1:
        command = ["launch", f"--workers={row.num_workers}", "--", *command]
    program = [sys.executable, "-m", "lingo.cli.main"]
    subprocess.run([*program, *command], check=True, stdout=subprocess.DEVNULL)


def _read_metric(row: Row, folder: Path, tag: str) -> np.ndarray:
    """Returns a metric of a run at each step that reports it."""
    lines = (folder / row.folder / "metrics.jsonl").read_text().splitlines()
    return np.array([report[tag] for report in map(json.loads, lines) if tag in report])


# ---- reading -------------------------------------------------------------------------------------


def _num_equal(row: Row, runs: list[Path], settings: tuple[str, ...]) -> int:
    """Returns how many checkpoints reach the devices of a runtime bit by bit."""
    request = json.dumps([row, [str(run) for run in runs], settings])
    addresses = free_addresses(row.num_workers)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", "from tools.bench.runtimes import read; read()", request],
            env=os.environ | (_config(addresses, i) if row.num_workers > 1 else {}),
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(row.num_workers)
    ]
    answers = [json.loads(_output(process).splitlines()[-1]) for process in processes]
    return sum(_is_equal(run, counts) for run, *counts in zip(runs, *answers, strict=True))


def _output(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return output


def _is_equal(run: Path, counts: list[tuple[int, int]]) -> bool:
    """Returns whether processes hold all elements of a checkpoint, and all of them are equal."""
    tensors = _checkpoint(run).tensors.values()
    size = sum(math.prod(shape) for shape, _ in tensors)
    num_elements, num_equal = map(sum, zip(*counts, strict=True))
    is_whole = num_elements in (size, size * len(counts))  # shards, or copies of everything
    return num_elements == num_equal and is_whole


def _checkpoint(run: Path) -> Checkpoint:
    return store.find(run / "checkpoints", None, of=run)


def _config(addresses: list[str], index: int) -> dict[str, str]:
    task = {"type": "worker", "index": index}
    return {VARIABLE: json.dumps({"cluster": {"worker": addresses}, "task": task})}


def read() -> None:
    """Prints of each checkpoint how many elements this process holds, and how many as written."""
    row, runs, settings = json.loads(sys.argv[-1])
    row = Row(*row)
    experiment = lingo.get(EXPERIMENT, *settings, f"runtime={row.mesh}").build()
    if row.num_devices > 1:
        experiment.runtime.make_devices(row.num_devices)
    with experiment.runtime.join():
        learner = experiment.learner
        program = experiment.runtime.start(learner, initial_state(learner))
        counts = []
        for run in map(Path, runs):
            checkpoint = _checkpoint(run)
            program.load(restore_state(learner, checkpoint))
            counts.append(_counts(named_tensors(learner, program.state()), checkpoint))
        print(json.dumps(counts), flush=True)


def _counts(tensors: Iterable[tuple[str, Any]], checkpoint: Checkpoint) -> tuple[int, int]:
    """Returns how many elements there are of tensors, and how many have a checkpoint's bits."""
    written, num_elements, num_equal = checkpoint.read(checkpoint.tensors), 0, 0
    for name, value in tensors:
        for index, array in value.shards if isinstance(value, Shards) else [(..., value)]:
            num_elements += array.size
            same = array.view(np.int32) == written[name][index].view(np.int32)
            num_equal += int(np.count_nonzero(same))
    return num_elements, num_equal
