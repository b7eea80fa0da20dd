"""The cost of a mesh: compiling for more and more devices, and a step on one against Local.

GSPMD's claim (Xu et al. 2021, sec. 4): one program for all devices, so that the time to compile it
does not grow with their number. Each compilation is `lingo show --program` in a process of its own;
the sizes take turns. No weight is allocated: the devices of the larger meshes would not fit here.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import NamedTuple

from lingo.config.params import Params
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from tools.bench import lm
from tools.harness import Report, Rival, alternate, at_most, choose, measure
from tools.rivals.plain_lm import Size

EXPERIMENT = "lm.lingvo_dense.dense_8b"  # as 128b, with 4 of its 64 alike layers, which are scanned
MESHES = choose(  # devices: along the batch, along the model
    {8: (2, 4), 256: (16, 16), 2048: (32, 64)}, small={2: (1, 2)}
)
BATCH_SIZE = choose(512, small=2)
REPEATS = choose(5, small=1)
ROUNDS = choose(12, small=1)
WANTED = {"compile": at_most(1.5), "trace": at_most(4.0)}  # times the shortest, at most

RUNTIMES: dict[str, Params] = {
    "Local": Local.params(),
    "Local, XLA": Local.params(xla=True),
    "Mesh of one": Mesh.params(),
}


class Seconds(NamedTuple):
    """The time to make one program."""

    trace: float  # from Python to the program of all devices
    compile: float  # from there to that of each


def compile_step(num_devices: int) -> Seconds:
    """Compiles the step for so many devices."""
    data, model = MESHES[num_devices]
    exp = f"--exp={EXPERIMENT}({data=},{model=},batch_size={BATCH_SIZE})"
    flags = [exp, "--program", "--format=json"]
    command = [sys.executable, "-m", "lingo.cli.main", "show", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    shown = json.loads(done.stdout)
    return Seconds(shown["trace_seconds"], shown["compile_seconds"])


def compare_compilation(report: Report) -> None:
    """Compares the least time for each number of devices with the shortest of all."""
    functions = {num: functools.partial(compile_step, num) for num in MESHES}
    times = alternate(functions, num=REPEATS)
    report.table(f"{EXPERIMENT}, {BATCH_SIZE} rows", f"least seconds of {REPEATS}")
    for field, wanted in WANTED.items():
        least = {num: min(getattr(s, field) for s in seconds) for num, seconds in times.items()}
        for num, seconds in least.items():
            name, ratio = f"{field} for {num} devices", seconds / min(least.values())
            report.line(name, ratio, wanted, note=f"{seconds:9.2f}")


def compare_runtimes(size: Size, report: Report) -> None:
    """Compares a step on one device: a mesh of one with Local."""
    rivals = {name: _steps(size, runtime) for name, runtime in RUNTIMES.items()}
    measured = measure(rivals, num=ROUNDS)
    print(f"\n{size}")
    report.times("a step", measured)
    costs = measured.rounds
    for name in list(RUNTIMES)[:-1]:
        report.ratio(f"Mesh / {name}", costs["Mesh of one"], costs[name])


def _steps(size: Size, runtime: Params) -> Rival:
    make = functools.partial(_experiment, size, runtime)
    return functools.partial(lm.train_steps, make=make, size=size)


def _experiment(size: Size, runtime: Params) -> Params:
    return lm.experiment(size, lm.Variant()).set(runtime=runtime)


def run(report: Report) -> None:
    """Compares compilation, then steps."""
    compare_compilation(report)
    compare_runtimes(lm.SIZE, report)
