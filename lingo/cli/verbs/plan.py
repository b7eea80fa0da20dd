"""Predicts bytes, seconds and the best mesh of an experiment, before any device is rented.

    lingo plan --exp=lm.lingvo_dense.dense_128b --devices=512 --hardware=tpu_v3 --batch=128
    lingo plan --exp=lm.source.base --devices=8 --hardware=h100 --price=3 --plot=plan.png
    lingo plan --exp=lm.lingvo_dense.dense_128b --hardware=tpu_v3      as it is registered
    lingo plan --exp=lm.source.tiny --devices=64 --hardware=tpu_v4 --measure_input
    lingo plan --calibrate=here.json --devices=2                       a file for --hardware
    lingo plan --allreduce=row_pairs --mesh=16x32 --holes=2x2@4,6

With --devices it tries all meshes of this number of devices, with settings that save memory. It
prints the fastest way of each mesh (its rules, shards, accumulation, pipeline, rematerialization),
why others are slower or do not fit, and the flags of the fastest. Utilization is the model's FLOPs
over those that the devices could do. Without --devices, it predicts the experiment's own runtime,
every stage of a PipelinedChain. Only --verify compiles programs, of the first two ways, to compare.

With the input's rate on one core (--input_rate, --measure_input) it predicts the hosts and cores
that the input needs, and the time of a step that waits for it. It returns 1 if nothing fits.

With --allreduce it plans an all-reduce alone; --holes names failed chips.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lingo.cli.clock import run_with_clock
from lingo.cli.command import FormatOptions, UsageError
from lingo.cli.compiler_options import CompilerOptions
from lingo.cli.experiment_options import ExperimentOptions
from lingo.config.classes import Classes
from lingo.config.count_text import count_text
from lingo.config.options import option, option_class
from lingo.config.overrides import apply
from lingo.contract import Experiment, build_experiment
from lingo.data.input import Input
from lingo.inspection.plan import calibration, input_part, report, search, stages, table
from lingo.inspection.plan.estimate import Build, Estimator
from lingo.inspection.plan.hardware import HARDWARE, Hardware
from lingo.inspection.plan.hardware import read as read_hardware
from lingo.inspection.plan.hardware import write as write_hardware
from lingo.inspection.plan.workload import missing_flops, workload
from lingo.mesh.allreduce.cost import Cost, measure, write_picture
from lingo.mesh.allreduce.execution import is_exact
from lingo.mesh.allreduce.grid import Axis, Grid, make_grid
from lingo.mesh.allreduce.plan import AllReducePlan
from lingo.mesh.allreduce.planner import PLANNERS, make_plan, make_plans
from lingo.mesh.topology import MAX_MESH_DEVICES
from lingo.runtimes.devices import MAX_VIRTUAL_DEVICES
from lingo.runtimes.mesh import engine
from lingo.runtimes.mesh.tpu_compiler import GENERATIONS

MAX_VERIFIED = 2
MAX_VARIATION = 10.0
MIN_RATE = 1e-6  # examples per second, which is an example in eleven days

_ALL = "all"
_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
_ALLREDUCE_OWN = ("mesh", "holes", "links", "elements", "payload")
_ALLREDUCE_FLAGS = ("allreduce", *_ALLREDUCE_OWN, "hardware", "format", "plot")
_STAGES_FLAGS = ("exp", "run", "set", "batch", "hardware", "format", "params_dir", "trust")


class _Request:
    """The experiment that the flags choose; `build` builds it with further overrides."""

    def __init__(self, options: Options) -> None:
        resolved, roots = options.resolve(), options.roots()
        self._resolved, self._classes = resolved, Classes(roots, trust=options.trust)
        batch = search.batch_settings(resolved.params, options.batch) if options.batch else []
        self._batch, self.name = batch, options.exp or options.run or ""
        self.flag = f"--{'exp' if options.exp else 'run'}={shlex.quote(self.name)}"
        self.overrides = (*options.set, *batch)
        self.experiment = self.build(())
        if options.batch:
            search.check_batch(self.experiment, options.batch)

    def build(self, settings: Sequence[str]) -> Experiment:
        """Returns the experiment, built with overrides as `--set` takes them."""
        params = self._resolved.params.copy()
        apply(params, [*self._batch, *settings], self._classes)
        return build_experiment(self._resolved._replace(params=params))


@option_class
class _AllreduceOptions(FormatOptions):
    """The options of `lingo plan --allreduce`; `Options` adds those for experiments."""

    allreduce: str | None = option(f"Plan an all-reduce: {', '.join((*PLANNERS, _ALL))}.")
    mesh: str | None = option("With --allreduce: the sizes of the mesh's axes, as 16x32.")
    holes: Sequence[str] = option("Failed chips: sizes and first position, as 2x2@4,6.", default=())
    links: Literal["torus", "mesh"] = option("torus: links close rows of chips.", default="torus")
    elements: int = option(
        "How many elements to sum; ResNet-50 has this number of weights.",
        default=25_557_032,
        minimum=1,
        maximum=10**15,
    )
    payload: Literal["float32", "bfloat16"] = option("The type of elements.", default="float32")
    hardware: str | None = option(f"{', '.join(HARDWARE)}, or a file of measurements.")
    plot: str | None = option("Draw the ways: FILE.png, FILE.svg or FILE.pdf.")


@option_class
class Options(_AllreduceOptions, CompilerOptions, ExperimentOptions):
    """The options of `lingo plan`."""

    devices: int | None = option(
        "How many devices there are; else the devices of the experiment's own runtime.",
        minimum=1,
        maximum=MAX_MESH_DEVICES,
    )
    batch: int | None = option("Examples per step, in place of the input's.", minimum=1)
    top: int = option("How many ways to show.", default=10, minimum=1)
    price: float | None = option(
        "The price of a device for an hour; shows the price of steps and of the training.",
        minimum=0,
    )
    input_rate: float | None = option("Examples/s that one core of a host makes.", minimum=0)
    input_variation: float | None = option(
        "Standard deviation / mean of a host's time per batch, to simulate uneven hosts.",
        minimum=0,
        maximum=MAX_VARIATION,
    )
    measure_input: bool = option(
        "Measure rate and variation on this machine; takes seconds, reads the data.", default=False
    )
    verify: bool = option("Compile the first two ways, and compare.", default=False)
    calibrate: str | None = option("Measure --devices of this machine, into this .json file.")


def run(options: Options) -> int:
    """Prints the plan; returns 0, or 1 if no way to run the experiment fits the devices."""
    if planner := _find_planner(options):
        if options.plot:
            _check_file("plot", options.plot, (".png", ".svg", ".pdf"))
        return _print_allreduce(planner, options)
    if options.calibrate is not None:
        return _calibrate(options, options.calibrate)
    hardware, request = read_hardware(_check_flags(options)), _Request(options)
    if options.devices is None and (chain := stages.find_chain(request.experiment)):
        options.refuse_others(_STAGES_FLAGS, "stages of different layers are planned alone")
        found = stages.plan_stages(request.experiment, chain, hardware)
        print((stages.json_text if options.as_json else stages.text)(found, request.name), end="")
        return 0 if found.fits else 1
    load = workload(request.experiment)
    estimator = Estimator(load, hardware, request.build)
    if options.devices is None:
        ranking = search.rank_own(request.experiment, estimator, hardware)
    else:
        ranking = search.rank(load, estimator, hardware, options.devices)
    first = ranking.best[0].candidate
    examples = report.examples_of_host(hardware, load, estimator.rules(first.rules), first)
    plan = report.MeshPlan(
        name=request.name,
        workload=load,
        hardware=hardware,
        ranking=ranking,
        training=report.training(request.experiment),
        missing_flops=missing_flops(request.experiment),
        rate=_rate(options, request.experiment.train_input, examples),
        price=options.price,
        rules=search.own_rules(request.experiment),
        flag=request.flag,
        is_own=options.devices is None,
        own=request.overrides,
    )
    found = report.report(plan, estimator, top=options.top)
    if options.plot:
        table.write_picture(found, Path(options.plot))
    _print(found, _verify(plan, request.build, options) if options.verify else {}, options)
    return 0 if ranking.feasible else 1


def _check_flags(options: Options) -> str:
    """Returns --hardware; raises UsageError for flags that are missing or contradict each other."""
    if options.hardware is None:
        raise UsageError(f"--hardware=NAME is missing: {', '.join(HARDWARE)}, or a file")
    if options.plot:
        _check_file("plot", options.plot, (".png", ".svg", ".pdf"))
    for name in ("price", "input_rate", "input_variation"):
        if not math.isfinite(getattr(options, name) or 0):
            raise UsageError(f"--{name}={getattr(options, name)} is not a finite number")
    if options.input_rate is not None and options.input_rate < MIN_RATE:
        raise UsageError(
            f"--input_rate={options.input_rate}: an input that makes less than {MIN_RATE}"
            " examples/s feeds no step"
        )
    options.check_compiler("verify")
    if options.input_rate and options.measure_input:
        raise UsageError("--input_rate is what --measure_input measures: leave one of them out")
    if options.input_variation is not None and not (options.input_rate or options.measure_input):
        raise UsageError(
            "--input_variation needs the rate of a core: --input_rate=EXAMPLES_PER_SECOND, or"
            " --measure_input"
        )
    return options.hardware


def _rate(options: Options, data: Input, num_examples: int) -> input_part.InputRate | None:
    """Returns the rate at which one core makes examples, given or measured; None: neither."""
    if options.input_rate:
        found = input_part.InputRate(options.input_rate)
    elif options.measure_input:
        found = run_with_clock(
            "measuring the input", lambda: input_part.measure(data, num_examples)
        )
    else:
        return None
    given = options.input_variation
    return found if given is None else found._replace(variation=given)


def _print(
    found: report.PlanReport, comparisons: dict[str, list[report.Comparison]], options: Options
) -> None:
    is_tpu = options.compiler == "tpu"
    if options.as_json:
        verified = {text: [row._asdict() for row in rows] for text, rows in comparisons.items()}
        types = {"verified_dtype": None if is_tpu else report.COMPARED_DTYPE, "verified": verified}
        print(json.dumps(report.as_json(found) | types))
        return
    print(table.text(found), end="")
    for text, rows in comparisons.items():
        whose = "TPUs" if is_tpu else f"virtual devices in {report.COMPARED_DTYPE}"
        print(f"\ncompiled for {whose}: {text}\n{table.comparisons_text(rows)}", end="")


def _calibrate(options: Options, file: str) -> int:
    """Measures the devices of this machine, and writes the rates into a file for --hardware."""
    _check_file("calibrate", file, (".json",))
    options.refuse_others(
        ("calibrate", "devices"),
        "--calibrate measures this machine, and takes --devices=N alone",
    )
    path, num_devices = Path(file), options.devices or 1
    if num_devices > MAX_VIRTUAL_DEVICES:
        raise UsageError(
            f"--devices={num_devices}: one machine has at most {MAX_VIRTUAL_DEVICES} virtual"
            " devices"
        )
    engine.make_devices(num_devices)
    hardware = run_with_clock("measuring", lambda: calibration.calibrate(path.stem, num_devices))
    write_hardware(hardware, path)
    print(table.describe_hardware(hardware), end="")
    return 0


def _check_file(flag: str, file: str, endings: Sequence[str]) -> None:
    """Raises UsageError unless a file's name has one of the endings, and its folder exists."""
    path = Path(file)
    if path.suffix not in endings:
        raise UsageError(f"--{flag}={file}: the file ends in {' or '.join(endings)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--{flag}={file}: there is no folder {path.parent}")


def _verify(
    plan: report.MeshPlan, build: Build, options: Options
) -> dict[str, list[report.Comparison]]:
    """Compiles the fastest ways, in float32 except for TPUs; returns way -> comparisons."""
    found: dict[str, list[report.Comparison]] = {}
    num_devices = plan.ranking.best[0].candidate.mesh.num_devices
    if num_devices == 1:
        raise UsageError("--verify compares the exchanges of a mesh: one device exchanges nothing")
    if num_devices > MAX_VIRTUAL_DEVICES:
        raise UsageError(
            f"--verify compiles for at most {MAX_VIRTUAL_DEVICES} virtual devices, and there are"
            f" {num_devices:,}: take fewer, with as many examples for each"
        )
    generation = plan.hardware.name.removeprefix("tpu_")
    if options.compiler == "tpu" and generation not in GENERATIONS:
        raise UsageError(f"--compiler=tpu: --hardware={plan.hardware.name} is no TPU that it knows")
    topology = options.find_topology(num_devices, generation)
    if topology is None:
        estimator = report.processor_estimator(plan.hardware, build)
    else:
        estimator = Estimator(plan.workload, plan.hardware, build)
    for candidate in (one.candidate for one in plan.ranking.best[:MAX_VERIFIED]):
        experiment = build(candidate.settings(plan.workload, plan.rules))
        text, estimate = table.describe(candidate), estimator.estimate(candidate)
        if not found:
            experiment.runtime.make_devices(num_devices)
        found[text] = run_with_clock(
            f"compiling {text}", functools.partial(report.compare, estimate, experiment, topology)
        )
    return found


# ---- all-reduce alone ----------------------------------------------------------------------------


class _Allreduce(NamedTuple):
    plan: AllReducePlan
    cost: Cost


def _find_planner(options: _AllreduceOptions) -> str | None:
    """Returns the planner of --allreduce, or None; raises UsageError for flags that do not fit."""
    if options.allreduce is None:
        if own := sorted(options.flag_names.intersection(_ALLREDUCE_OWN)):
            raise UsageError(f"--{own[0]} goes with --allreduce, which is missing")
        return None
    options.refuse_others(_ALLREDUCE_FLAGS, "--allreduce plans no experiment")
    return options.allreduce


def _print_allreduce(planner: str, options: _AllreduceOptions) -> int:
    """Prints plans for an all-reduce; returns 0, or 1 if no plan is possible.

    Raises UsageError or ParamError for wrong flags, or if the named planner refuses.
    """
    hardware = read_hardware(options.hardware or next(iter(HARDWARE)))
    grid = _grid(options, hardware)
    element_bytes, num_elements = _ELEMENT_BYTES[options.payload], options.elements
    if planner == _ALL:
        if options.plot:
            raise UsageError(f"--plot draws one plan: name a planner in place of {_ALL}")
        plans, refusals = make_plans(grid)
    else:
        plans, refusals = [make_plan(planner, grid)], {}
    results = []
    for plan in plans:
        if not is_exact(plan):
            raise RuntimeError(f"a bug in lingo: the sums of {plan.name} on {grid} are wrong")
        results.append(_Allreduce(plan, measure(plan, num_elements, element_bytes=element_bytes)))
    results.sort(key=lambda result: result.cost.seconds)
    if options.plot:
        write_picture(results[0].plan, results[0].cost, Path(options.plot))
    if options.as_json:
        given = {"elements": num_elements, "payload": options.payload, "hardware": hardware.name}
        print(json.dumps(_allreduce_json(grid, given, results, refusals)))
    else:
        payload = f"{count_text(num_elements, 'element')} of {options.payload}"
        print(_allreduce_text(grid, payload, results, refusals), end="")
    return 0 if results else 1


def _grid(options: _AllreduceOptions, hardware: Hardware) -> Grid:
    """Returns the grid of chips that --mesh and --holes describe, with the hardware's links.

    With --hardware, the mesh must be a slice of its torus; axes that can be closed are rings.
    """
    if options.mesh is None or not re.fullmatch(r"\d{1,9}(x\d{1,9})*", options.mesh):
        given = "is missing" if options.mesh is None else f"is {options.mesh!r}"
        raise UsageError(f"--mesh {given:.80}: --allreduce needs sizes, as --mesh=16x32")
    sizes = [int(size) for size in options.mesh.split("x")]
    if not hardware.torus:
        if "links" in options.flag_names:
            raise UsageError(
                f"--links={options.links} needs a torus, and {hardware.name} has none: leave it out"
            )
        axes = _dimension_axes(hardware, sizes)
    else:
        axes = _torus_axes(hardware, sizes, options.links, is_slice=options.hardware is not None)
    return make_grid(axes, options.holes)


def _torus_axes(
    hardware: Hardware, sizes: Sequence[int], links: str, *, is_slice: bool
) -> list[Axis]:
    """Returns a mesh's axes, of `sizes`, with latency and bandwidth of a torus's sides.

    The largest axis is on the largest side, and so on. With `is_slice`, the mesh must be inside the
    torus, and only axes whose size is a multiple of 4 are closed, as in `Hardware.arrange`.
    Without, further axes have the last side's rates. The cores of a chip are no axis.
    """
    sides = sorted(hardware.dimensions[-hardware.torus :], key=lambda side: -side.size)
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    largest, wanted = [side.size for side in sides], [sizes[i] for i in order]
    is_inside = len(wanted) <= len(largest) and all(map(operator.le, wanted, largest))
    if is_slice and not is_inside:
        raise UsageError(
            f"--mesh={'x'.join(map(str, sizes)):.80} is not in the torus of {hardware.name},"
            f" {' x '.join(map(str, largest))} chips; without --hardware any mesh may be planned"
        )
    axes: dict[int, Axis] = {}
    for place, i in enumerate(order):
        size, side = sizes[i], sides[min(place, len(sides) - 1)]
        is_closed = links == "torus" and (not is_slice or (side.wraps and size % 4 == 0))
        axes[i] = Axis(size, "ring" if is_closed else "line", side.latency, side.bandwidth)
    return [axes[i] for i in range(len(sizes))]


def _dimension_axes(hardware: Hardware, sizes: Sequence[int]) -> list[Axis]:
    """Returns a mesh's axes with the rates of a network's dimensions; the innermost is the last."""
    dimensions = hardware.dimensions[: len(sizes)][::-1]
    if len(dimensions) < len(sizes):
        raise UsageError(
            f"--mesh has {len(sizes)} axes, and the network of {hardware.name} has"
            f" {len(dimensions)}, the innermost last"
        )
    axes = []
    for size, side in zip(sizes, dimensions, strict=True):
        if size > side.size:
            raise UsageError(
                f"--mesh has an axis of {size:,}, and {hardware.name} has {side.size:,} there:"
                " the innermost axis is the last"
            )
        kind = side.kind if side.kind == "switch" or side.wraps else "line"
        axes.append(Axis(size, kind, side.latency, side.bandwidth))
    return axes


def _allreduce_text(
    grid: Grid, payload: str, results: Sequence[_Allreduce], refusals: dict[str, str]
) -> str:
    """Returns a table of plans, and below it why other planners refuse."""
    lines = [
        f"all-reduce of {payload} on {count_text(grid.num_healthy, 'chip')}, {grid}",
        "Simulated: every chip ends with the sum of all; times are predictions of alpha-beta.",
        "",
        "planner     steps     MB sent by a chip   on a link   messages on a link   ms",
    ]
    for plan, cost in results:
        sent, link = cost.bytes_sent / 1e6, cost.max_link_bytes / 1e6
        lines.append(
            f"{plan.name:9} {cost.steps:7,} {sent:21,.4g} {link:11,.4g} {cost.congestion:20}"
            f"   {1e3 * cost.seconds:.4g}"
        )
    lines += [""] * bool(refusals)
    lines += [f"{name}: {why}" for name, why in refusals.items()]
    return "".join(f"{line}\n" for line in lines)


def _allreduce_json(
    grid: Grid, given: dict[str, Any], results: Sequence[_Allreduce], refusals: dict[str, str]
) -> dict[str, Any]:
    """Returns what `_allreduce_text` shows, with all digits, for JSON."""
    plans = []
    for plan, cost in results:
        fields = {k: v for k, v in cost._asdict().items() if k != "link_bytes"}
        plans.append({"planner": plan.name, **fields, "max_link_bytes": cost.max_link_bytes})
    return {
        "is_prediction": True,
        **given,
        "mesh": grid.shape,
        "links": [axis.kind for axis in grid.axes],
        "holes": [grid.position(chip) for chip in sorted(grid.holes)],
        "chips": grid.num_healthy,
        "plans": plans,
        "refusals": refusals,
    }
