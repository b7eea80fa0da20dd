"""Shows an experiment's parameters, weights, learning rates, pipeline or compiled program.

    lingo show --exp=lm.source.tiny
    lingo show --exp=lm.source.tiny --set=optimizer.learning_rate=1e-3 --set='Stack=Repeat'
    lingo show --run=runs/tiny --changed
    lingo show --exp=lm.lingvo_dense.dense_1t --weights
    lingo show --exp=lm.source.small --weights --only='ffn|norm' --sort=size
    lingo show --exp=lm.source.small --weights --depth=2
    lingo show --exp=lm.source.tiny --set='runtime=Mesh(data=2,model=4)' --weights
    lingo show --exp=lm.source.tiny --plot_schedule
    lingo show --exp=lm.source.tiny --graph=tiny.svg
    lingo show --exp=tiny --set='Stack=Pipeline(num_stages=4, num_micro_batches=4)' --pipeline
    lingo show --exp=lm.source.tiny --set='runtime=Mesh(data=2,model=4)' --program
    lingo show --exp=lm.source.tiny --set='runtime=Mesh(data=8)' --program --compiler=tpu
    lingo show --run=runs/tiny --format=json

If a parameter was not set, its line says where the value comes from. With --run, the last lines say
whether the user's own files that the run has used have changed.

--changed shows only what arguments and overrides have changed: `path: before -> after`.
--weights shows a table of weights, and marks weights that the optimizer never changes. --only keeps
weights whose path has a match of the pattern, --sort=size puts the largest first, and --depth shows
sums by module.
--graph draws the values that were set as a tree of classes, for Graphviz.
--pipeline shows how layers are split into stages, and when each stage works. With
--pipeline=simulation the table also has seconds, simulated from measurements of single layers.
--program compiles a step for a mesh, without memory for weights, and shows what its devices
exchange and hold. The processor is split into as many devices as the mesh has. With --compiler=tpu,
the package libtpu compiles the program for TPUs, without a TPU.
--format=json prints config.json, or what the other flags show as one object.
"""

from __future__ import annotations

import functools
import json
import math
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from lingo.cli import experiment_options
from lingo.cli.clock import run_with_clock
from lingo.cli.command import FormatOptions, UsageError
from lingo.cli.compiler_options import CompilerOptions
from lingo.cli.experiment_options import DeviceOptions, ExperimentOptions, print_note
from lingo.config import registry, source_files, text
from lingo.config.node.tree import nodes
from lingo.config.options import option, option_class
from lingo.config.params import ParamError, Params, fields
from lingo.config.printable import escape_controls
from lingo.config.registry import ResolvedExperiment
from lingo.contract import Experiment, build_experiment
from lingo.inspection import (
    pipeline,
    pipeline_table,
    program,
    stage_times,
    weight_table,
)
from lingo.layers.stacks.stack import Chain
from lingo.runtimes.mesh import engine
from lingo.runtimes.replicated.replicated import Replicated
from lingo.runtimes.runtime import Runtime
from lingo.runtimes.tpu.tpu_mesh import TpuMesh
from lingo.trainer.directory.run_directory import SOURCE, RunDirectory

POINTS = 1000  # number of intervals into which a plot divides the steps


@option_class
class Options(ExperimentOptions, CompilerOptions, DeviceOptions, FormatOptions):
    """The options of `lingo show`."""

    changed: bool = option("Show what differs from the experiment's defaults.", default=False)
    weights: bool = option("Show the weights instead of the parameters.", default=False)
    only: str | None = option("With --weights: a pattern that occurs in the path.")
    sort: Literal["path", "size"] = option("With --weights: which come first.", default="path")
    depth: int | None = option(
        "With --weights: sums by module, at this number of parts of the path.", minimum=1
    )
    plot_schedule: bool = option(
        "Draw every learning rate from step 0 to max_steps.", default=False
    )
    graph: str | None = option("Draw the parameters that were set: FILE.dot or FILE.svg.")
    pipeline: Literal["schedule", "simulation"] | None = option(
        "Show the stages of a pipeline and their clock; or simulate it, from measured layers.",
        switch_value="schedule",
    )
    program: Literal["train", "eval"] | None = option(
        "Compile a training step, or an evaluation, and show what devices exchange.",
        switch_value="train",
    )


def run(options: Options) -> int:
    """Prints what the flags request."""
    kinds = ("changed", "weights", "plot_schedule", "graph", "pipeline", "program")
    asked = [f"--{flag}" for flag in kinds if getattr(options, flag)]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} show different things: give one of them")
    if options.devices is not None and not (options.program or options.pipeline):
        raise UsageError(
            "--devices goes with --program and --pipeline: nothing else depends on the devices"
        )
    details = [f"--{flag}" for flag in ("only", "sort", "depth") if flag in options.flag_names]
    if details and not options.weights:
        raise UsageError(f"{' and '.join(details)}: only with --weights")
    if options.depth is not None and options.as_json:
        raise UsageError("--depth prints sums as text; --format=json lists every weight")
    options.check_compiler("program")
    if options.graph and options.as_json:
        raise UsageError("--graph writes a picture, which --format=json cannot show")
    resolved, as_json = options.resolve(), options.as_json
    if options.changed:
        _print_changes(resolved, options)
    elif options.graph:
        write_graph(resolved.params, Path(options.graph))
    elif options.weights:
        _print_weights(build_experiment(resolved), options)
    elif options.plot_schedule:
        _print_rates(build_experiment(resolved), as_json=as_json)
    elif options.pipeline:
        experiment = build_experiment(resolved)
        options.make_devices(resolved.params)
        _print_pipelines(experiment, options)
    elif options.program:
        experiment = build_experiment(resolved)
        options.make_devices(resolved.params)
        _print_program(experiment, options)
    elif as_json:
        print(experiment_options.config_json(resolved, options.roots()), end="")
    else:
        print(text.render(text.resolve(resolved.params)), end="")
        _print_source(options.run)
    return 0


def _print_changes(resolved: ResolvedExperiment, options: Options) -> None:
    """Prints how the experiment differs from its function's result without arguments."""
    trust = None if options.run is None else options.trust
    changes = registry.find_changes(resolved.params, resolved.origin, options.roots(), trust=trust)
    if options.as_json:
        print(json.dumps({one.path: [one.old_value, one.new_value] for one in changes}))
        return
    for change in changes:
        print(change)
    if not changes:
        print_note(f"nothing differs from the defaults of {resolved.origin.function}")


def _print_source(run: str | None) -> None:
    """Prints, for each of the user's own files that a run has used, whether it has changed."""
    for name, file in RunDirectory(run).read_source().items() if run else ():
        try:
            same = source_files.read(Path(file.path)).sha256 == file.sha256
            state = "is the same" if same else "has changed since"
        except ParamError:
            state = "is not there any more"
        line = f"# {SOURCE}/{name}: sha256 {file.sha256}; {file.path} {state}"
        print(escape_controls(line))


def _print_weights(experiment: Experiment, options: Options) -> None:
    if experiment.declares_late:
        experiment.check_weights()  # building has not called it
    learner = experiment.learner
    table = weight_table.rows(learner.task) if options.as_json else weight_table.brief(learner.task)
    if options.only is not None and not (table := weight_table.select(table, options.only)):
        raise UsageError(f"--only={options.only}: no weight has such a path; --weights lists them")
    if options.sort == "size":
        table = sorted(table, key=lambda row: -row.parameters)
    layout, frozen = experiment.runtime.layout(learner), weight_table.find_frozen(learner)
    if options.depth is not None:
        print(weight_table.sums_text(table, options.depth), end="")
    elif options.as_json:
        found = weight_table.split_json(learner, layout, table) if layout else None
        print(json.dumps(found or weight_table.as_json(table, frozen)))
    else:
        found = weight_table.split_text(learner, layout, table) if layout else None
        print(found or weight_table.text(table, frozen), end="")


def _print_pipelines(experiment: Experiment, options: Options) -> None:
    reports = pipeline.find_pipelines(experiment, started=options.devices is not None)
    if not reports:
        raise UsageError(
            "the experiment has no pipeline. A flag makes one of its layers:"
            f" --set='{_pipeline_override(experiment)}'"
        )
    shown = []
    for report in reports:
        simulation = None
        if options.pipeline == "simulation":
            work = functools.partial(stage_times.simulate, report)
            simulation = run_with_clock(f"measuring layers of {report.path}", work)
        render = pipeline_table.as_json if options.as_json else pipeline_table.text
        shown.append(render(report, simulation))
    print(json.dumps({"pipelines": shown}) if options.as_json else "\n".join(shown), end="")


def _pipeline_override(experiment: Experiment) -> str:
    is_chain = any(isinstance(layer, Chain) for layer in experiment.task.tree())
    swap = "Chain=PipelinedChain" if is_chain else "Stack=Pipeline"
    rows = experiment.train_input.specs()["rows"][0][0] // experiment.p.accumulation_steps
    return f"{swap}(num_stages=4, num_micro_batches={math.gcd(rows, 8)})"


def _print_program(experiment: Experiment, options: Options) -> None:
    """Compiles a step for the mesh's devices, and prints a report on the program."""
    runtime, learner = experiment.runtime, experiment.learner
    layout, specs = runtime.layout(learner), experiment.train_input.specs()
    if layout is None or isinstance(runtime, Replicated):
        raise UsageError(
            f"runtime={type(runtime).__name__}: {_own_program(runtime)}. --program is for"
            " --set='runtime=Mesh(data=2,model=4)' and the like."
        )
    num = layout.mesh.num_devices
    topology = options.find_topology(num)
    if isinstance(runtime, TpuMesh):
        engine.make_devices(num)  # CPU devices stand in for the TPU's cores
    elif options.devices is None:
        runtime.make_devices(num)
    is_evaluation = options.program == "eval"
    program_name = "an evaluation" if is_evaluation else "a step"
    devices = f"{num} device{'s' * (num > 1)}" + (f" of TPUs, {topology}" if topology else "")
    compile_program = functools.partial(
        runtime.compile_program, learner, specs, evaluation=is_evaluation, topology=topology
    )
    compiled = run_with_clock(f"compiling {program_name} for {devices}", compile_program)
    report = program.report(compiled, experiment.task)
    if options.as_json:
        print(json.dumps(program.as_json(report)))
    else:
        print(program.text(report) + program.seconds(compiled), end="")


def _own_program(runtime: Runtime) -> str:
    """Returns, for an error, why the runtime has no partitioned program to show."""
    if isinstance(runtime, Replicated) and runtime.p.shard_update:
        return (
            "TensorFlow's collectives, not a partitioner, connect replicas: each computes the step"
            " of its examples, sums whole gradients by an all-reduce (TensorFlow's reduce-scatter"
            " only times out on CPUs), updates its chunk of each weight, and gathers all chunks"
        )
    return "every device computes the whole step, none has a part of it"


def _print_rates(experiment: Experiment, *, as_json: bool) -> None:
    steps = np.unique(np.linspace(0, experiment.length.steps, POINTS + 1).round())
    rates = _rates(experiment, steps)
    if as_json:
        shortest = {tag: [float(str(v)) for v in values] for tag, values in rates.items()}
        print(json.dumps({"steps": [int(step) for step in steps], "rates": shortest}))
        return
    alike: dict[bytes, list[str]] = {}
    for tag, values in rates.items():
        alike.setdefault(values.tobytes(), []).append(tag)
    for tags in alike.values():
        values = rates[tags[0]]
        peak = int(np.argmax(values))
        print(f"{', '.join(tags)}: {values[peak]:.4g} at most, at step {steps[peak]:.0f}")
        print(draw_curve(steps, values, names=("step", "rate")))


def _rates(experiment: Experiment, steps: np.ndarray) -> dict[str, np.ndarray]:
    """Returns tag -> learning rates [N], at steps [N], for every rate that training reports."""
    with np.errstate(over="ignore", invalid="ignore"):
        rates = {k: np.asarray(v) for k, v in experiment.optimizer.rates(steps).items()}
    for tag, values in rates.items():
        if not np.isfinite(values).all():
            step = steps[np.argmin(np.isfinite(values))]
            raise ParamError(f"optimizer: {tag} is not finite at step {step:.0f}")
    return rates


# ---- parameters as a graph -----------------------------------------------------------------------


_GRAPH_LAYOUT = {"rankdir": "LR", "ranksep": "1", "nodesep": "0.1"}


def write_graph(params: Params, file: Path) -> None:
    """Draws the parameters that were set as a graph, into a `.dot` or `.svg` file.

    `.svg` needs Graphviz's program `dot`. Raises UsageError if it fails.
    """
    if file.suffix not in (".dot", ".svg"):
        raise UsageError(f"--graph={file}: the name has to end in .dot or .svg")
    source = _graph_source(params)
    content = source if file.suffix == ".dot" else _svg(source)
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--graph={file} cannot be written: {error.strerror}") from None


def _graph_source(params: Params) -> str:
    """Returns Graphviz source: a box for each Params, with a row for each field that was set.

    A field that holds Params has a coloured cell, with a line from there to their box. Boxes are
    placed from left to right by their depth in the tree.
    """
    from fiddle import graphviz  # 0.07 s, for this flag only

    params = params.copy()
    for node in nodes(params):  # sorts rows by declaration; they were in the order of setting
        values = dict(node.__arguments__)
        node.__arguments__.clear()
        node.__arguments__.update(
            (name, values[name]) for name in fields(node.cls) if name in values
        )
    picture = graphviz.render(params)
    picture.graph_attr.update(_GRAPH_LAYOUT)
    return picture.source


def _svg(source: str) -> str:
    try:
        command = ["dot", "-Tsvg"]
        return subprocess.run(
            command, input=source, capture_output=True, text=True, check=True
        ).stdout
    except FileNotFoundError:
        raise UsageError(
            "--graph=FILE.svg needs the program dot of Graphviz, which is not installed: on Debian"
            " apt-get install graphviz. --graph=FILE.dot needs no program."
        ) from None
    except subprocess.CalledProcessError as error:
        raise UsageError(f"--graph: dot failed: {error.stderr.strip()}") from None


# ---- curves of braille characters ----------------------------------------------------------------


BRAILLE = 0x2800
# [row, column] -> the bit of a dot in a braille character; row 0 is at the bottom.
_DOTS = np.array([[0x40, 0x80], [0x04, 0x20], [0x02, 0x10], [0x01, 0x08]])
_INTERVALS = 8  # number of intervals between the points whose values are written


def draw_curve(x: np.ndarray, y: np.ndarray, *, names: Sequence[str], height: int = 10) -> str:
    """Draws a curve without negative values with braille characters, in `height` lines.

        0.02 ┤⠀⠀⡠⠊⠑⠢⢄⡀
             │⢀⠔⠁⠀⠀⠀⠀⠈⠑⠢⢄⡀
           0 ┤⠁⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠈
        step  0    10   20
        rate  0    0.02 0.01

    `x` [N], ascending, and `y` [N], finite, have any numeric type, and N is at least 2. `names` are
    the names of x and y.
    """
    places = np.unique(np.linspace(x[0], x[-1], _INTERVALS + 1).round())
    steps = [f"{place:.0f}" for place in places]
    values = [f"{value:.4g}" for value in np.interp(places, x, y)]
    width = _INTERVALS * (max(map(len, (*steps, *values))) + 2)
    top = float(y.max()) or 1.0
    labels = [f"{top:.4g}", *[""] * (height - 2), "0"]
    left = max(map(len, (*labels, *names)))
    lines = [
        f"{label:>{left}} {'┤' if label else '│'}{line}"
        for label, line in zip(labels, _canvas(x, y / top, width, height), strict=True)
    ]
    columns = [round(part * width) for part in (places - x[0]) / (x[-1] - x[0])]
    for name, texts in zip(names, (steps, values), strict=True):
        lines.append(f"{name:>{left}}  {_place_texts(columns, texts)}")
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _canvas(x: np.ndarray, y: np.ndarray, width: int, height: int) -> list[str]:
    """Returns the lines of a drawing of y [N], in 0..1, over x [N], in braille characters."""
    fine = np.union1d(x, np.linspace(x[0], x[-1], 8 * width))
    across = np.rint((fine - x[0]) / (x[-1] - x[0]) * (2 * width - 1)).astype(int)
    up = np.rint(np.interp(fine, x, y) * (4 * height - 1)).astype(int)
    cells = np.zeros((height, width), int)
    np.bitwise_or.at(cells, (height - 1 - up // 4, across // 2), _DOTS[up % 4, across % 2])
    return ["".join(chr(BRAILLE + dots) if dots else " " for dots in row) for row in cells.tolist()]


def _place_texts(columns: Iterable[int], texts: Iterable[str]) -> str:
    line = ""
    for column, shown in zip(columns, texts, strict=True):
        line = line.ljust(column) + shown
    return line
