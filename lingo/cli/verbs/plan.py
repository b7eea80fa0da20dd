"""Predicts bytes, seconds and the best mesh of an experiment, before any device is rented.

    lingo plan --exp=lm.lingvo_dense.dense_128b --devices=512 --hardware=tpu_v3 --batch=128
    lingo plan --exp=lm.source.base --devices=8 --hardware=h100 --plot=plan.png
    lingo plan --exp=lm.lingvo_dense.dense_128b --hardware=tpu_v3      as it is registered
    lingo plan --allreduce=row_pairs --mesh=16x32 --holes=2x2@4,6

With --devices it tries the ways to run the experiment on so many devices: every mesh, with what
saves memory. It prints the fastest that fit, why the others lose, and the flags of the first.
Without, it predicts the experiment's own runtime. Nothing is compiled, and no device is needed.
With --allreduce it plans that alone, on chips of which some may have failed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from lingo.cli import allreduce, command, experiment_flags
from lingo.cli.clock import run_with_clock
from lingo.cli.command import UsageError
from lingo.config.overrides.apply import apply
from lingo.config.params import ParamError
from lingo.config.roots.classes import Classes
from lingo.contract import Experiment, build_experiment
from lingo.inspection.memory import size
from lingo.inspection.plan import picture, table, verification
from lingo.inspection.plan.calibration import calibrate
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Build, Estimator
from lingo.inspection.plan.hardware import HARDWARE, Hardware, read, write
from lingo.inspection.plan.search import Ranking, least_devices, rank
from lingo.inspection.plan.table import Plan
from lingo.inspection.plan.verification import Comparison, compare
from lingo.inspection.plan.workload import Workload, workload
from lingo.layers.stacks.pipeline import Pipeline
from lingo.mesh.topology import MAX_MESH_DEVICES, topology
from lingo.runtimes.local import Local
from lingo.runtimes.mesh import engine
from lingo.runtimes.sharded import Sharded

WORD = ""  # it takes no word beside its flags
TOP = 10


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    experiment_flags.define(values)
    command.integer(
        "devices",
        "How many devices there are; left out: those of the experiment's own runtime.",
        values,
        lower_bound=1,
        upper_bound=MAX_MESH_DEVICES,
    )
    command.string("hardware", f"{', '.join(HARDWARE)}, or a file of measurements.", values)
    command.integer("batch", "Examples of a step, in place of the input's.", values, lower_bound=1)
    command.integer("top", f"How many ways to show; {TOP} if left out.", values, lower_bound=1)
    command.number(
        "price", "Of a device for an hour, to show the price of a step.", values, lower_bound=0
    )
    command.boolean("verify", "Compile the first two for virtual devices, and compare.", values)
    command.string("calibrate", "Measure --devices of this machine, into this .json file.", values)
    command.string("plot", "Draw the ways: FILE.png, FILE.svg or FILE.pdf.", values)
    command.choice("format", ("text", "json"), "How to print it.", values)
    allreduce.define(values)


def run(values: flags.FlagValues, word: str) -> int:
    """Prints the plan; returns 1 if nothing fits."""
    del word
    if allreduce.is_asked(values):
        if values.plot:
            _check_file("plot", values.plot, (".png", ".svg", ".pdf"))
        return allreduce.print_allreduce(values)
    if values.calibrate is not None:
        return _calibrate(values)
    if values.hardware is None:
        raise UsageError(f"--hardware=NAME is missing: {', '.join(HARDWARE)}, or a file")
    if values.plot:
        _check_file("plot", values.plot, (".png", ".svg", ".pdf"))
    hardware = read(values.hardware)
    build = _builder(values)
    experiment = build(())
    load = workload(experiment)
    estimator = Estimator(load, hardware, build)
    if values.devices is None:
        ranking = _own(experiment, load, estimator, hardware)
    else:
        ranking = rank(load, estimator, hardware, values.devices)
    name = values.exp or values.run
    batch = [f"train_input.batch_size={values.batch}"] if values.batch else []
    rules, own = _own_rules(experiment), (*values.set, *batch)
    plan = Plan(name, load, hardware, ranking, values.price, rules, own)
    if values.plot:
        picture.write(plan, Path(values.plot))
    comparisons = _verify(plan, build) if values.verify else {}
    as_json, top = values.format == "json", values.top or TOP
    if as_json:
        found = {text: [one._asdict() for one in all_] for text, all_ in comparisons.items()}
        print(json.dumps(table.as_json(plan, top=top) | {"verified": found}))
    else:
        print(table.text(plan, top=top), end="")
        for text, found in comparisons.items():
            print(f"\ncompiled for virtual devices: {text}\n{verification.text(found)}", end="")
        if not ranking.feasible:
            print(_advice(plan, estimator))
    return 0 if ranking.feasible else 1


def _calibrate(values: flags.FlagValues) -> int:
    """Measures the devices of this machine, and writes a file for --hardware."""
    _check_file("calibrate", values.calibrate, (".json",))
    path = Path(values.calibrate)
    if values.exp or values.run or values.hardware:
        raise UsageError("--calibrate measures this machine, and takes --devices=N alone")
    num_devices = values.devices or 1
    engine.make_devices(num_devices)
    hardware = run_with_clock("measuring", lambda: calibrate(path.stem, num_devices))
    write(hardware, path)
    print(table.describe_hardware(hardware), end="")
    return 0


def _check_file(flag: str, file: str, endings: Sequence[str]) -> None:
    """Raises UsageError for a file of another ending, or in a folder that there is not."""
    path = Path(file)
    if path.suffix not in endings:
        raise UsageError(f"--{flag}={file}: the file ends in {' or '.join(endings)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--{flag}={file}: there is no folder {path.parent}")


def _verify(plan: Plan, build: Build) -> dict[str, list[Comparison]]:
    """Compiles the two fastest ways for virtual devices; returns comparisons by way."""
    found: dict[str, list[Comparison]] = {}
    if plan.ranking.best[0].candidate.mesh.num_devices == 1:
        raise UsageError("--verify compares the exchanges of a mesh: there is one device alone")
    for estimate in plan.ranking.best[:2]:
        experiment = build(estimate.candidate.settings(plan.workload, plan.rules))
        text = table.describe(estimate.candidate)
        if not found:
            experiment.runtime.make_devices(estimate.candidate.mesh.num_devices)
        found[text] = run_with_clock(
            f"compiling {text}", functools.partial(compare, estimate, plan.workload, experiment)
        )
    return found


def _builder(values: flags.FlagValues) -> Build:
    """Returns a function that builds the experiment of the flags, with further overrides."""
    resolved, roots = experiment_flags.resolve(values), command.find_roots(values)
    batch = [f"train_input.batch_size={values.batch}"] if values.batch else []
    classes = Classes(roots, trust=values.trust)

    def build(settings: Sequence[str]) -> Experiment:
        params = resolved.params.copy()
        apply(params, [*batch, *settings], classes)
        return build_experiment(resolved._replace(params=params))

    return build


def _own(
    experiment: Experiment, load: Workload, estimator: Estimator, hardware: Hardware
) -> Ranking:
    """Returns the ranking that has the experiment's own runtime alone."""
    runtime = experiment.runtime
    if isinstance(runtime, Sharded):
        p = runtime.p
        candidate = Candidate(runtime.topology(), p.rules, p.shard_update, p.shard_weights)
    elif isinstance(runtime, Local):
        candidate = Candidate(topology({}))
    else:
        raise UsageError(
            f"--devices=N is missing: runtime={type(runtime).__name__} has as many as there are"
        )
    candidate = candidate._replace(accumulation_steps=experiment.p.accumulation_steps)
    for p in (layer.p for layer in experiment.task.tree() if isinstance(layer, Pipeline)):
        if p.num_stages not in (1, candidate.num_stages):
            raise UsageError(
                f"a pipeline of {p.num_stages} stages on {candidate.mesh} is not predicted: give"
                f" the runtime stage={p.num_stages}, or --devices=N to find one"
            )
        candidate = candidate._replace(
            micro_batches=p.num_micro_batches, repeats=p.circular_repeats
        )
    estimate = estimator.estimate(candidate)
    fits = estimate.total_bytes <= hardware.memory_bytes
    return Ranking([estimate] if fits else [], [] if fits else [estimate], {})


def _own_rules(experiment: Experiment) -> dict[str, object]:
    """Returns the rules of single axes that the experiment sets."""
    if not isinstance(experiment.runtime, Sharded):
        return {}
    return {
        name: getattr(experiment.runtime.p, name) for name in ("weight_rules", "activation_rules")
    }


def _advice(plan: Plan, estimator: Estimator) -> str:
    """Returns the sentence for a plan of which nothing fits."""
    smallest, hardware = plan.ranking.too_large[0], plan.hardware
    num = smallest.candidate.mesh.num_devices
    needs = (
        f"nothing fits: the smallest way needs {size(smallest.total_bytes)} on each of {num:,}"
        f" device{'s' * (num > 1)} ({table.describe(smallest.candidate)}), and {hardware.name} has"
        f" {size(hardware.memory_bytes)}"
    )
    try:
        enough = least_devices(plan.workload, estimator, hardware, num)
    except ParamError:  # no network has so many
        enough = None
    if enough is None:
        return f"{needs}; no power of two times as many is enough with this batch"
    return f"{needs}; {enough:,} devices are enough"
