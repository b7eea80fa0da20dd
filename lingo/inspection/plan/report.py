"""The report on a plan, computed once for text, JSON and pictures.

`compare` compares a prediction with the step that XLA compiles for the devices of its mesh. By
default the step is compiled for virtual devices of this machine's CPU. In such a program, bytes of
arguments and outputs, FLOPs of matrix products and exchanged bytes are exact. Bytes of temporaries
depend on how a compiler orders and fuses operations. On a CPU XLA computes in float32 whatever the
experiment's dtype, so the compared prediction is in float32, too. A TPU's compiler computes in the
experiment's dtype, and also estimates cycles.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.inspection import program
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Build, Estimate, Estimator
from lingo.inspection.plan.hardware import Hardware
from lingo.inspection.plan.input_part import InputPart, InputRate, host_examples, input_part
from lingo.inspection.plan.search import Ranking, least_devices
from lingo.inspection.plan.workload import Workload, workload
from lingo.mesh.rules import Rules
from lingo.runtimes.layout import batch_axes
from lingo.runtimes.mesh.mesh import Mesh


class Training(NamedTuple):
    """The length of a whole training."""

    max_steps: int
    # Number of target positions in a batch, padding included; None if examples are not sequences.
    tokens: int | None


def training(experiment: Experiment) -> Training:
    """Returns the number of training steps of an experiment, and of tokens in each batch."""
    specs = experiment.train_input.specs()
    tokens = math.prod(specs["segments"][0]) if "segments" in specs else None
    return Training(experiment.length.steps, tokens)


class MeshPlan(NamedTuple):
    """The result of a search, with the experiment, hardware and price that were searched."""

    name: str  # name of the experiment
    workload: Workload
    hardware: Hardware
    ranking: Ranking
    training: Training
    flag: str  # the flag that chooses the experiment, quoted for a shell
    missing_flops: Sequence[str] = ()  # layers whose FLOPs are not counted
    rate: InputRate | None = None  # examples per second that one CPU core makes; None: not known
    price: float | None = None  # price of one device for one hour; None: not known
    rules: Mapping[str, object] = MappingProxyType({})  # sharding rules, for `Candidate.settings`
    is_own: bool = False  # whether only the experiment's own runtime was considered
    own: Sequence[str] = ()  # overrides that the experiment has already, as `--set` takes them

    def flags(self, candidate: Candidate) -> str:
        """Returns the command-line flags that run the experiment as a candidate does, quoted."""
        texts = [*self.own, *candidate.settings(self.workload, self.rules)]
        return " ".join([self.flag, *(f"--set={shlex.quote(text)}" for text in texts)])


class Price(NamedTuple):
    """The cost of running the experiment in one way, in the currency of `MeshPlan.price`."""

    step: float  # cost of a step
    million_examples: float  # cost of a million training examples
    training: float  # cost of the whole training


class Way(NamedTuple):
    """A way to run the experiment, with its estimate, its input and its cost."""

    estimate: Estimate
    fits: bool  # whether the predicted bytes fit in a device's memory
    input: InputPart
    step_seconds: float  # includes the time of waiting for input, if the input's rate is known
    training_seconds: float  # time of all steps, without start, evaluations and checkpoints
    device_hours: float  # training time in hours, times the number of devices
    price: Price | None

    @property
    def candidate(self) -> Candidate:
        return self.estimate.candidate


class Advice(NamedTuple):
    """What to do if no way to run the experiment fits in memory."""

    smallest: Way  # the way that needs the least memory
    # A number of devices that is enough, for `--devices=N`. None: however often the number is
    # doubled, no way fits with this batch size.
    enough: int | None


class PlanReport(NamedTuple):
    """The content of a plan's text, JSON and picture."""

    plan: MeshPlan
    ways: list[Way]  # the best way of each mesh, at most as many as are to be shown
    faster: Way | None  # a way that is faster than all fitting ones, but does not fit
    advice: Advice | None  # None if some way fits

    @property
    def first(self) -> Way:
        return self.ways[0]


def report(plan: MeshPlan, estimator: Estimator, *, top: int) -> PlanReport:
    """Returns the report on a plan, with the best ways of up to `top` meshes."""
    feasible, too_large, _ = plan.ranking

    def describe(estimate: Estimate) -> Way:
        return _way(plan, estimator, estimate)

    faster = min(too_large, key=lambda estimate: estimate.step_seconds, default=None)
    is_faster = faster and feasible and faster.step_seconds < feasible[0].step_seconds
    return PlanReport(
        plan=plan,
        ways=[describe(estimate) for estimate in plan.ranking.best[:top]],
        faster=describe(faster) if faster and is_faster else None,
        advice=None if feasible else _advice(plan, estimator, describe(too_large[0])),
    )


def examples_of_host(hardware: Hardware, load: Workload, rules: Rules, way: Candidate) -> int:
    """Returns how many of a step's examples the first host (machine) makes."""
    return host_examples(
        way.mesh,
        rules.activations["batch"],
        batch_size=load.batch_size,
        devices_per_host=hardware.devices_per_host,
    )


def _way(plan: MeshPlan, estimator: Estimator, estimate: Estimate) -> Way:
    load, hardware, candidate = plan.workload, plan.hardware, estimate.candidate
    num_devices = candidate.mesh.num_devices
    needs = input_part(
        hardware,
        num_devices=num_devices,
        examples=examples_of_host(hardware, load, estimator.rules(candidate.rules), candidate),
        batch_size=load.batch_size,
        batch_bytes=load.input_bytes,
        step_seconds=estimate.step_seconds,
        rate=plan.rate,
    )
    seconds = needs.need.step_seconds if needs.need else estimate.step_seconds
    all_seconds = plan.training.max_steps * seconds
    hours = num_devices * all_seconds / 3600
    price = None
    if plan.price is not None:
        step = plan.price * num_devices * seconds / 3600
        price = Price(step, 1e6 * step / load.batch_size, plan.price * hours)
    fits = estimate.total_bytes <= hardware.memory_bytes
    return Way(estimate, fits, needs, seconds, all_seconds, hours, price)


def _advice(plan: MeshPlan, estimator: Estimator, smallest: Way) -> Advice:
    num_devices = smallest.candidate.mesh.num_devices
    if not plan.is_own:  # the search found no way that fits on this number of devices
        num_devices *= 2
    return Advice(smallest, least_devices(plan.workload, estimator, plan.hardware, num_devices))


def as_json(report: PlanReport) -> dict[str, Any]:
    """Returns a report as JSON values."""
    plan, advice = report.plan, report.advice
    feasible, too_large, refusals = plan.ranking
    return {
        "experiment": plan.name,
        "is_prediction": True,
        "hardware": plan.hardware.name,
        "memory_bytes": plan.hardware.memory_bytes,
        "batch_size": plan.workload.batch_size,
        "model_flops": 3 * plan.workload.flops,
        "missing_flops": list(plan.missing_flops),
        "unknown_residuals": list(plan.workload.unknown_residuals),
        "partial_remats": plan.workload.partial_remats,
        "max_steps": plan.training.max_steps,
        "training_examples": plan.training.max_steps * plan.workload.batch_size,
        "training_tokens": plan.training.tokens and plan.training.max_steps * plan.training.tokens,
        "input_rate": plan.rate and plan.rate._asdict(),
        "price_of_device_hour": plan.price,
        "num_fitting": len(feasible),
        "num_too_large": len(too_large),
        "refused": refusals,
        "ways": [_way_json(plan, one) for one in report.ways],
        "faster_but_too_large": report.faster and _way_json(plan, report.faster),
        "advice": advice
        and {
            "smallest_bytes": advice.smallest.estimate.total_bytes,
            "enough_devices": advice.enough,
        },
    }


def _way_json(plan: MeshPlan, way: Way) -> dict[str, Any]:
    estimate, candidate, need = way.estimate, way.candidate, way.input.need
    return {
        "settings": candidate.settings(plan.workload, plan.rules),
        "flags": plan.flags(candidate),
        "mesh": {axis: n for axis, n in candidate.mesh.sizes if n > 1},
        **{k: v for k, v in candidate._asdict().items() if k != "mesh"},
        "fits": way.fits,
        "step_seconds": estimate.step_seconds,
        "step_seconds_with_input": way.step_seconds,
        "utilization": estimate.utilization,
        "bubble": estimate.bubble,
        "total_bytes": estimate.total_bytes,
        "bytes": estimate.bytes,
        "seconds": estimate.seconds,
        "exchanges": [
            one.exchange._asdict() | {"seconds": one.seconds} for one in estimate.exchanges
        ],
        "input": way.input._asdict() | {"need": need and need._asdict()},
        "training_seconds": way.training_seconds,
        "device_hours": way.device_hours,
        "price": way.price and way.price._asdict(),
    }


# ---- the compiled program ------------------------------------------------------------------------


COMPARED_DTYPE = "float32"
"""The dtype in which XLA computes on a CPU, and so the dtype of the compared predictions."""


class Comparison(NamedTuple):
    """A predicted number and the compiled program's number for it, per device and step."""

    name: str
    prediction: float
    program: float
    # False if the program has a loop of unknown length; one iteration of such a loop is counted.
    is_known: bool = True

    @property
    def difference(self) -> float:
        """The relative error: prediction minus the program's number, over the program's number."""
        return self.prediction / self.program - 1 if self.program else float(self.prediction > 0)


def processor_estimator(hardware: Hardware, build: Build) -> Estimator:
    """Returns an estimator for the programs that XLA compiles for CPUs, for use with `compare`."""

    def build_float32(settings: Sequence[str]) -> Experiment:
        return build([f"task.dtype={COMPARED_DTYPE}", *settings])

    as_compiled = hardware._replace(is_tpu=False)
    return Estimator(workload(build_float32(())), as_compiled, build_float32)


def compare(
    estimate: Estimate, experiment: Experiment, topology: str | None = None
) -> list[Comparison]:
    """Compiles a step of the experiment, and compares the estimate with the compiled program.

    The experiment must have the settings of the estimate's candidate, and may have any dtype. With
    `topology` the step is compiled for TPUs of this topology; without one it is compiled for CPUs,
    and the estimate must come from `processor_estimator`. The process must have as many devices as
    the mesh. Raises ParamError if the runtime is not a Mesh.
    """
    runtime, specs = experiment.runtime, experiment.train_input.specs()
    if not isinstance(runtime, Mesh):
        raise ParamError(f"runtime={type(runtime).__name__}: only programs of a Mesh are compared")
    compiled = runtime.compile_program(experiment.learner, specs, topology=topology)
    report = program.report(compiled, experiment.task)
    mesh, memory = compiled.mesh, compiled.memory
    parts = mesh.size(batch_axes(runtime.axis_rules(), mesh))
    batch = sum(
        math.prod(shape) * np.dtype(kind).itemsize / parts for shape, kind in specs.values()
    )
    state = sum(estimate.bytes[kind] for kind in ("weights", "slots", "statistics"))
    is_known = all(row.is_known for row in report.rows)
    flops = report.product_flops
    moved = sum(one.exchange.bytes for one in estimate.exchanges)
    rest = estimate.total_bytes - state
    whole = memory["arguments"] + memory["outputs"] - memory["aliased"] + memory["temporaries"]
    comparisons = [
        Comparison("bytes of arguments", state + batch, memory["arguments"]),
        Comparison("bytes of temporaries", rest, memory["temporaries"]),
        Comparison("bytes in all", state + batch + rest, whole),
        Comparison("FLOPs of products", estimate.flops, flops, is_known),
        Comparison("bytes exchanged", moved, sum(row.bytes for row in report.rows), is_known),
    ]
    if report.cycles:
        arithmetic = sum(estimate.seconds[kind] for kind in ("arithmetic", "bubble", "update"))
        comparisons.append(
            Comparison("seconds without exchanges", arithmetic, report.seconds, is_known)
        )
    return comparisons
