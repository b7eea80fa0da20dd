"""What a mesh costs: compiling for ever more devices, and a step on one, against Local.

GSPMD's claim (Xu et al. 2021, sec. 4): one program for all devices, so that the time to compile it
does not grow with their number. Each compilation is `lingo show --program` in a process of its own;
the sizes take turns. No weight is allocated: the devices of the larger meshes would not fit here.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import NamedTuple

from lingo.config.params import Params
from lingo.learner.state import initial_state
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from tools.bench import lm
from tools.bounds import Bounds, at_most
from tools.rivals.plain_lm import Size
from tools.turns import Rival, Turns, measure, spread

EXPERIMENT = "lm.lingvo_dense.dense_8b"  # as 128b, with 4 of its 64 alike layers, which are scanned
MESHES = {8: (2, 4), 256: (16, 16), 2048: (32, 64)}  # devices: along the batch, along the model
BATCH_SIZE = 512
REPEATS = 5
ROUNDS = 12
WANTED = {"compile": at_most(1.5), "trace": at_most(4.0)}  # times the shortest, at most

RUNTIMES: dict[str, Params] = {
    "Local": Local.params(),
    "Local, XLA": Local.params(xla=True),
    "Mesh of one": Mesh.params(),
}


class Seconds(NamedTuple):
    """Of making one program.

    Attributes:
        trace: from Python to the program of all devices.
        compile: from there to that of each.
    """

    trace: float
    compile: float


def compiled(num_devices: int) -> Seconds:
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


def report_compilation(bounds: Bounds) -> None:
    """Prints how long compiling takes for each number of devices, and ratios to the shortest."""
    found: dict[int, list[Seconds]] = {num: [] for num in MESHES}
    for _ in range(REPEATS):
        for num, seconds in found.items():
            seconds.append(compiled(num))
    best = {num: Seconds(*map(min, zip(*all, strict=True))) for num, all in found.items()}
    print(f"\n{EXPERIMENT}, {BATCH_SIZE} rows: least seconds of {REPEATS}, times the shortest")
    print(f"{'devices':12}" + "".join(f"{field:>22}" for field in Seconds._fields))
    shortest = Seconds(*map(min, zip(*best.values(), strict=True)))
    for num, seconds in best.items():
        line = f"{num:<12}"
        for field, value, least in zip(Seconds._fields, seconds, shortest, strict=True):
            line += f"{value:12.2f} {value / least:9.2f}"
            bounds.hold(f"{field} for {num} devices", value / least, WANTED[field])
        print(line)
    print(f"{'wanted':12}" + "".join(f"{'':12} {WANTED[f]!s:>9}" for f in Seconds._fields))


def steps(turns: Turns, *, size: Size, runtime: str) -> None:
    """A turn is a step on one device."""
    built = lm.experiment(size, lm.Variant()).set(mesh=RUNTIMES[runtime]).build()
    program = built.mesh.start(built.learner, initial_state(built.learner))
    one = {name: value[None] for name, value in lm.batch(size).items()}
    while True:
        with turns.turn():
            float(program.train(one)["scalars"]["loss/total"][0])


def report_overhead(size: Size) -> None:
    """Prints what a step costs on one device."""
    rivals: dict[str, Rival] = {
        name: functools.partial(steps, size=size, runtime=name) for name in RUNTIMES
    }
    first, costs = measure(rivals, num=ROUNDS)
    print(f"\n{size}\n{'seconds a step':24}{'least':>8} {'median':>8} {'most':>8}   first step")
    for name, turns in costs.items():
        wall = spread([cost.seconds for cost in turns])
        print(f"{name:24}{wall}   {first[name].seconds:10.1f}")
    for name in list(RUNTIMES)[:-1]:
        print(f"{'Mesh / ' + name:24}{lm.ratios(costs['Mesh of one'], costs[name])}")


def main() -> int:
    """Prints everything; returns the exit code."""
    bounds = Bounds()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors at the beginning")
    report_compilation(bounds)
    report_overhead(Size())
    print(f"load {os.getloadavg()[0]:.1f} at the end")
    return bounds.exit_code()
