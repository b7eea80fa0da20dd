"""Predicts bytes, seconds and the best mesh of an experiment, before any device is rented.

    lingo plan --exp=lm.lingvo_dense.dense_128b --devices=512 --hardware=tpu_v3 --batch=128
    lingo plan --exp=lm.source.base --devices=8 --hardware=h100 --plot=plan.png
    lingo plan --exp=lm.lingvo_dense.dense_128b --hardware=tpu_v3      as it is registered

With --devices it tries the ways to run the experiment on so many devices: every mesh, with what
saves memory. It prints the fastest that fit, why the others lose, and the flags of the first.
Without, it predicts the experiment's own runtime. Nothing is compiled, and no device is needed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from lingo.cli import command, experiment_flags
from lingo.cli.command import UsageError
from lingo.config.params import ParamError
from lingo.contract import Experiment, build_experiment
from lingo.inspection.memory import size
from lingo.inspection.plan import picture, table
from lingo.inspection.plan.candidate import Candidate
from lingo.inspection.plan.estimate import Estimator
from lingo.inspection.plan.hardware import HARDWARE, Hardware, read
from lingo.inspection.plan.search import Ranking, least_devices, rank
from lingo.inspection.plan.table import Plan
from lingo.inspection.plan.workload import Workload, workload
from lingo.layers.stacks.pipeline import Pipeline
from lingo.mesh.topology import MAX_MESH_DEVICES, topology
from lingo.runtimes.local import Local
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
    command.number("price", "Of a device for an hour, to show the price of a step.", values)
    command.string("plot", "Draw the ways: FILE.png, FILE.svg or FILE.pdf.", values)
    command.choice("format", ("text", "json"), "How to print it.", values)


def run(values: flags.FlagValues, word: str) -> int:
    """Prints the plan; returns 1 if nothing fits."""
    del word
    if values.hardware is None:
        raise UsageError(f"--hardware=NAME is missing: {', '.join(HARDWARE)}, or a file")
    hardware = read(values.hardware)
    build = functools.partial(_build, values)
    experiment = build(())
    load = workload(experiment)
    estimator = Estimator(load, hardware, build)
    if values.devices is None:
        ranking = _own(experiment, load, estimator, hardware)
    else:
        ranking = rank(load, estimator, hardware, values.devices)
    plan = Plan(
        values.exp or values.run, load, hardware, ranking, values.price, _own_rules(experiment)
    )
    top = values.top or TOP
    if values.plot:
        picture.write(plan, Path(values.plot))
    if values.format == "json":
        print(json.dumps(table.as_json(plan, top=top)))
    else:
        print(table.text(plan, top=top), end="")
    if ranking.fitting:
        return 0
    if values.format != "json":
        print(_advice(plan, estimator))
    return 1


def _build(values: flags.FlagValues, settings: Sequence[str]) -> Experiment:
    """Returns the experiment of the flags, with further overrides."""
    batch = [f"train_input.batch_size={values.batch}"] if values.batch else []
    return build_experiment(experiment_flags.resolve(values, [*batch, *settings]))


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
    for layer in experiment.task.tree():
        if isinstance(layer, Pipeline) and candidate.num_stages > 1:
            p = layer.p
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
        f" devices ({table.describe(smallest.candidate)}), and {hardware.name} has"
        f" {size(hardware.memory_bytes)}"
    )
    try:
        enough = least_devices(plan.workload, estimator, hardware, num)
    except ParamError:  # no network has so many
        enough = None
    if enough is None:
        return f"{needs}; no number of devices is enough with this batch"
    return f"{needs}; {enough:,} devices are enough"
