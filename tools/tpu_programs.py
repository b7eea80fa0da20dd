"""`python -m tools.tpu_programs`: compiles registered experiments for TPUs that are not here.

    python -m tools.tpu_programs --minutes=30           each program becomes a line of docs/results
    python -m tools.tpu_programs --only='lm.switch.*'   of some experiments
    python -m tools.tpu_programs --page                 writes the tables of docs/tpu*.md again

An experiment with a mesh is compiled for as many chips of a v4 (v5p, where a v4 has too few); a
small one for `Mesh(data=8)` on a v5e. `lingo show --program --compiler=tpu` does it, in a process
for each. The command returns 0 if every program has a line, 3 if the time was over before.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import lingo
from lingo.inspection.memory import size
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.mesh.tpu_compiler import GENERATIONS, topology_name
from tools.source_tree import ROOT, current_commit
from tools.studies.page import fill_tables, table

RESULTS = ROOT / "docs" / "results" / "tpu_programs.jsonl"
PAGES = (ROOT / "docs" / "tpu.md", ROOT / "docs" / "tpu_programs.md")
UNFINISHED = 3

SMALL = (
    *("click.dlrm.clicks", "image.amoebanet.digits", "image.botnet.glyphs"),
    *("image.efficientnet.glyphs", "image.lenet.digits", "image.resnet.glyphs"),
    *("image.ssd.scenes", "image.unet.blobs", "image.vit.glyphs", "lm.source.tiny"),
    *("lm.source.tiny_moe", "lm.st_moe.tiny_pretrain", "seq2seq.source.signatures"),
)
"""Experiments that train on this machine; on eight chips they have at least one example each."""


class Program(NamedTuple):
    """A step or evaluation to compile."""

    experiment: str
    overrides: tuple[str, ...]
    topology: str
    kind: str  # "train" or "eval"

    def arguments(self) -> list[str]:
        """Returns the arguments of `lingo`."""
        return [
            *("show", f"--exp={self.experiment}", f"--program={self.kind}", "--format=json"),
            *("--compiler=tpu", f"--topology={self.topology}"),
            *(f"--set={override}" for override in self.overrides),
        ]


def claims() -> Iterator[tuple[str, Program]]:
    """Yields what papers claim, each as programs to compare.

    GPipe's table 1: Transformer-L as a plain stack, with recomputation, and in eight stages.
    Weight-update sharding (Xu et al. 2020): every device updates all weights, or its part.
    """
    for layers, num, form in ((3, 1, ("Pipeline=Stack",)), (13, 1, ()), (103, 8, ())):
        overrides = (f"exp.num_layers={layers}", "task.dtype=bfloat16", *form)
        topology = topology_name("v3", num)
        program = Program("lm.gpipe.transformer_l", overrides, topology, "train")
        yield f"{layers} layers on {num} of v3", program
    for name, overrides, topology in (
        ("lm.source.base", ("runtime=Mesh(data=64)", "train_input.batch_size=64"), "v4:4x4x4"),
        ("image.resnet.supercomputer", (), "v4:8x16x16"),
    ):
        for is_sharded, what in ((False, "all weights"), (True, "its part")):
            update = f"runtime.shard_update={is_sharded}"
            yield f"a device updates {what}", Program(name, (*overrides, update), topology, "train")


def programs() -> Iterator[Program]:
    """Yields the programs to compile, the small ones first."""
    for name in SMALL:
        batch = lingo.get(name).train_input.batch_size
        override = f"train_input.batch_size={8 * math.ceil(batch / 8)}"
        for kind in ("train", "eval"):
            yield Program(name, ("runtime=Mesh(data=8)", override), topology_name("v5e", 8), kind)
    for entry in lingo.list():
        runtime = lingo.get(entry.name).runtime
        if runtime.cls is Mesh:
            num = runtime.build().topology().num_devices
            generation = "v4" if num <= GENERATIONS["v4"].max_devices else "v5p"
            yield Program(entry.name, (), topology_name(generation, num), "train")


def read(path: Path) -> dict[Program, dict[str, Any]]:
    """Returns the results in a file by program, the latest of each."""
    found: dict[Program, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        experiment, overrides, *others = (row.pop(name) for name in Program._fields)
        found[Program(experiment, tuple(overrides), *others)] = row
    return found


def compile_program(program: Program, seconds: float) -> dict[str, Any]:
    """Returns the result of a program: what `lingo show` reports, or the last line of its error."""
    began = time.monotonic()
    command = [sys.executable, "-m", "lingo.cli.main", *program.arguments()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"not compiled within {seconds:.0f} s"}
    spent = {"seconds": round(time.monotonic() - began, 1)}
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"]
        return spent | {"error": said[-1][:300]}
    shown = json.loads(done.stdout)
    kept = ("memory", "bytes_by_kind", "product_flops", "tpu", "trace_seconds", "compile_seconds")
    return spent | {name: shown[name] for name in kept}


def tables(results: Mapping[Program, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns the tables of the pages."""
    columns = ["arguments", "temporaries", "exchanged", "peak", "compiled in"]
    rows = [_row(program, results[program]) for program in programs() if program in results]
    compared = [
        [what, *_row(program, results[program]), *_milliseconds(results[program])]
        for what, program in claims()
        if program in results
    ]
    return {
        "programs": table(["experiment", "program", *columns], rows),
        "claims": table(["what", "experiment", "program", *columns, "ms"], compared),
    }


def _row(program: Program, result: Mapping[str, Any]) -> list[str]:
    what = "step" if program.kind == "train" else "evaluation"
    name = [f"`{program.experiment}`", f"{what}, {program.topology}"]
    if "error" in result:
        return [*name, result["error"].replace("|", "/"), "", "", "", ""]
    memory = result["memory"]
    return [
        *name,
        size(memory["arguments"]),
        size(memory["temporaries"]),
        size(sum(result["bytes_by_kind"].values())),
        f"{result['tpu']['utilization']:.2%}",
        f"{result['compile_seconds']:.0f} s",
    ]


def _milliseconds(result: Mapping[str, Any]) -> list[str]:
    return ["" if "error" in result else f"{1000 * result['tpu']['seconds']:.2f}"]


def main(arguments: list[str]) -> int:
    """Compiles what has no result, and writes the pages; returns the exit code."""
    parser = argparse.ArgumentParser("python -m tools.tpu_programs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=math.inf, help="no program starts later")
    parser.add_argument("--limit", type=float, default=30, help="minutes for one program")
    parser.add_argument("--only", default="*", help="a pattern of experiments")
    parser.add_argument("--page", action="store_true", help="only write the pages")
    values = parser.parse_args(arguments)
    deadline, is_finished = time.monotonic() + 60 * values.minutes, True
    wanted = [*(program for _, program in claims()), *programs()]
    for program in () if values.page else wanted:
        if not fnmatch.fnmatch(program.experiment, values.only) or program in read(RESULTS):
            continue
        if time.monotonic() > deadline:
            is_finished = False
            break
        print(f"lingo {' '.join(program.arguments())}", flush=True)
        result = compile_program(program, 60 * values.limit)
        commit = current_commit()
        row = program._asdict() | result | {"commit": commit}
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
            os.fsync(file.fileno())
        print(result.get("error") or f"compiled in {result['compile_seconds']:.0f} s", flush=True)
    filled = tables(read(RESULTS))
    for page in PAGES:
        page.write_text(fill_tables(page.read_text(), filled))
    return 0 if is_finished else UNFINISHED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
