"""Compares a prediction with the program that XLA makes for the devices of its mesh.

The step is compiled for virtual devices of this machine's processor. So what is compared is exact
for a processor: bytes of arguments and outputs, FLOPs of products, bytes that devices exchange.
Temporaries depend on how a compiler orders operations, and fuses them.

XLA computes in float32 on a processor, whatever the type of the experiment is: the prediction that
is compared is the one in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.inspection import program
from lingo.inspection.memory import size
from lingo.inspection.plan.estimate import Build, Estimate, Estimator
from lingo.inspection.plan.hardware import Hardware
from lingo.inspection.plan.workload import workload
from lingo.inspection.weight_table import Columns, align_columns
from lingo.runtimes.layout import batch_axes
from lingo.runtimes.mesh.mesh import Mesh

DTYPE = "float32"
"""The type of what a processor computes, and of predictions that are compared."""


class Comparison(NamedTuple):
    """A predicted number and that of the compiled program, of one device and step."""

    name: str
    prediction: float
    program: float
    is_known: bool = True  # False if the program has a loop of unknown length, which counts once

    @property
    def difference(self) -> float:
        """How far the prediction is from the program, in parts of the program's number."""
        return self.prediction / self.program - 1 if self.program else float(self.prediction > 0)


def float32_estimator(hardware: Hardware, build: Build) -> Estimator:
    """Returns an estimator of an experiment in float32: its estimates are those to `compare`."""

    def build_float32(settings: Sequence[str]) -> Experiment:
        return build([f"task.dtype={DTYPE}", *settings])

    return Estimator(workload(build_float32(())), hardware, build_float32)


def compare(estimate: Estimate, experiment: Experiment) -> list[Comparison]:
    """Compiles a step of the experiment with the settings of an estimate, and compares.

    The estimate is that of `float32_estimator`; the experiment may be of any type. The process has
    as many devices as the mesh.
    """
    runtime, specs = experiment.runtime, experiment.train_input.specs()
    if not isinstance(runtime, Mesh):
        raise ParamError(f"runtime={type(runtime).__name__}: only programs of a Mesh are compared")
    compiled = runtime.compile_program(experiment.learner, specs)
    report = program.report(compiled, experiment.task)
    mesh, memory = compiled.mesh, compiled.memory
    parts = mesh.size(batch_axes(runtime.axis_rules(), mesh))
    batch = sum(
        math.prod(shape) * np.dtype(kind).itemsize / parts for shape, kind in specs.values()
    )
    state = sum(estimate.bytes[kind] for kind in ("weights", "slots", "statistics"))
    is_known = all(row.is_known for row in report.rows)
    flops = report.matmul_flops + report.convolution_flops
    moved = sum(one.exchange.bytes for one in estimate.exchanges)
    rest = estimate.total_bytes - state
    whole = memory["arguments"] + memory["outputs"] - memory["aliased"] + memory["temporaries"]
    return [
        Comparison("bytes of arguments", state + batch, memory["arguments"]),
        Comparison("bytes of temporaries", rest, memory["temporaries"]),
        Comparison("bytes in all", state + batch + rest, whole),
        Comparison("FLOPs of products", estimate.flops, flops, is_known),
        Comparison("bytes exchanged", moved, sum(row.bytes for row in report.rows), is_known),
    ]


def text(comparisons: list[Comparison]) -> str:
    """Returns a table of comparisons."""

    def show(one: Comparison, value: float) -> str:
        return f"{value:.4g}" if one.name.startswith("FLOPs") else size(value)

    table = align_columns(
        Columns(
            {"on one device": [one.name for one in comparisons]},
            {
                "predicted": [show(one, one.prediction) for one in comparisons],
                "compiled": [
                    show(one, one.program) + ("" if one.is_known else "*") for one in comparisons
                ],
                "difference": [f"{one.difference:+.1%}" for one in comparisons],
            },
        )
    )
    if all(one.is_known for one in comparisons):
        return table
    return table + "* and more: in a loop of unknown length, whose turns count once\n"
