"""Predicts bytes, seconds and the best mesh of an experiment, before any device is rented.

    lingo plan --exp=lm.lingvo_dense.dense_128b --devices=512 --hardware=tpu_v3 --batch=128
    lingo plan --exp=lm.source.base --devices=8 --hardware=h100 --price=3 --plot=plan.png
    lingo plan --exp=lm.lingvo_dense.dense_128b --hardware=tpu_v3      as it is registered
    lingo plan --exp=lm.source.tiny --devices=64 --hardware=tpu_v4 --measure_input
    lingo plan --calibrate=here.json --devices=2                       a file for --hardware
    lingo plan --allreduce=row_pairs --mesh=16x32 --holes=2x2@4,6

With --devices it tries the ways to run the experiment on so many devices: every mesh, with what
saves memory. It prints the fastest that fit, why the others lose, and the flags of the first.
Without, it predicts the experiment's own runtime. Nothing is compiled, and no device is needed.

The rate of the input on one core (--input_rate, or --measure_input) adds the hosts and cores that
it needs, and the time of a step that waits for it. The exit code is 1 if nothing fits.

With --allreduce it plans that alone, on chips of which some may have failed.
"""

from __future__ import annotations

import functools
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from lingo.cli import allreduce, command, experiment_flags
from lingo.cli.clock import run_with_clock
from lingo.cli.command import UsageError
from lingo.config.overrides.apply import apply
from lingo.config.roots.classes import Classes
from lingo.contract import Experiment, build_experiment
from lingo.data.input import Input
from lingo.inspection.plan import picture, table, verification
from lingo.inspection.plan.batch_setting import batch_settings, check_batch
from lingo.inspection.plan.calibration import calibrate
from lingo.inspection.plan.estimate import Build, Estimator
from lingo.inspection.plan.hardware import HARDWARE, read, write
from lingo.inspection.plan.input_rate import InputRate, measure
from lingo.inspection.plan.missing_flops import missing_flops
from lingo.inspection.plan.report import (
    Plan,
    Report,
    as_json,
    examples_of_host,
    report,
    training,
)
from lingo.inspection.plan.search import own_rules, rank, rank_own
from lingo.inspection.plan.verification import Comparison, compare, float32_estimator
from lingo.inspection.plan.workload import workload
from lingo.mesh.topology import MAX_MESH_DEVICES
from lingo.runtimes.devices import MAX_VIRTUAL_DEVICES
from lingo.runtimes.mesh import engine

WORD = ""  # it takes no word beside its flags
TOP = 10
MAX_VERIFIED = 2
MAX_VARIATION = 10.0
MIN_RATE = 1e-6  # examples a second: one in eleven days


class _Request:
    """An experiment as the flags have it, and how it is built with further overrides."""

    def __init__(self, values: flags.FlagValues) -> None:
        resolved, roots = experiment_flags.resolve(values), command.find_roots(values)
        self._resolved, self._classes = resolved, Classes(roots, trust=values.trust)
        batch = batch_settings(resolved.params, values.batch) if values.batch else []
        self._batch, self.name = batch, values.exp or values.run
        self.flag = f"--{'exp' if values.exp else 'run'}={shlex.quote(self.name)}"
        self.overrides = (*values.set, *batch)
        self.experiment = self.build(())
        if values.batch:
            check_batch(self.experiment, values.batch)

    def build(self, settings: Sequence[str]) -> Experiment:
        """Returns the experiment with overrides, as `--set` takes them."""
        params = self._resolved.params.copy()
        apply(params, [*self._batch, *settings], self._classes)
        return build_experiment(self._resolved._replace(params=params))


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
        "price",
        "Of a device for an hour, to show that of steps, examples and the training.",
        values,
        lower_bound=0,
    )
    command.number("input_rate", "Examples/s that one core of a host makes.", values, lower_bound=0)
    command.number(
        "input_variation",
        "Standard deviation over mean of the time of a host's batch: uneven hosts are simulated.",
        values,
        lower_bound=0,
        upper_bound=MAX_VARIATION,
    )
    command.boolean(
        "measure_input", "Measure both on this machine, for seconds; it reads the data.", values
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
    _check_flags(values)
    hardware, request = read(values.hardware), _Request(values)
    left_out = missing_flops(request.experiment)
    load = workload(request.experiment)
    estimator = Estimator(load, hardware, request.build)
    if values.devices is None:
        ranking = rank_own(request.experiment, estimator, hardware)
    else:
        ranking = rank(load, estimator, hardware, values.devices)
    first = ranking.best[0].candidate
    examples = examples_of_host(hardware, load, estimator.rules(first.rules), first)
    plan = Plan(
        name=request.name,
        workload=load,
        hardware=hardware,
        ranking=ranking,
        training=training(request.experiment),
        missing_flops=left_out,
        rate=_rate(values, request.experiment.train_input, examples),
        price=values.price,
        rules=own_rules(request.experiment),
        flag=request.flag,
        is_own=values.devices is None,
        own=request.overrides,
    )
    found = report(plan, estimator, top=values.top or TOP)
    if values.plot:
        picture.write(found, Path(values.plot))
    _print(found, _verify(plan, request.build) if values.verify else {}, values.format)
    return 0 if ranking.feasible else 1


def _check_flags(values: flags.FlagValues) -> None:
    """Raises UsageError for flags that are missing, or do not go together."""
    if values.hardware is None:
        raise UsageError(f"--hardware=NAME is missing: {', '.join(HARDWARE)}, or a file")
    if values.plot:
        _check_file("plot", values.plot, (".png", ".svg", ".pdf"))
    for name in ("price", "input_rate", "input_variation"):
        if not math.isfinite(values[name].value or 0):
            raise UsageError(f"--{name}={values[name].value} is not a finite number")
    if values.input_rate is not None and values.input_rate < MIN_RATE:
        raise UsageError(
            f"--input_rate={values.input_rate}: an input that makes less than {MIN_RATE} examples/s"
            " feeds no step"
        )
    if values.input_rate and values.measure_input:
        raise UsageError("--input_rate is what --measure_input measures: leave one of them out")
    if values.input_variation is not None and not (values.input_rate or values.measure_input):
        raise UsageError(
            "--input_variation needs the rate of a core: --input_rate=EXAMPLES_PER_SECOND, or"
            " --measure_input"
        )


def _rate(values: flags.FlagValues, data: Input, num_examples: int) -> InputRate | None:
    """Returns the rate of an input on a core, as given or measured; None without either."""
    given = {} if values.input_variation is None else {"variation": values.input_variation}
    if values.input_rate:
        return InputRate(values.input_rate, **given)
    if not values.measure_input:
        return None
    measured = run_with_clock("measuring the input", lambda: measure(data, num_examples))
    return measured._replace(**given)


def _print(found: Report, comparisons: dict[str, list[Comparison]], how: str) -> None:
    if how == "json":
        verified = {text: [one._asdict() for one in all_] for text, all_ in comparisons.items()}
        types = {"verified_dtype": verification.DTYPE, "verified": verified}
        print(json.dumps(as_json(found) | types))
        return
    print(table.text(found), end="")
    for text, rows in comparisons.items():
        print(f"\nin {verification.DTYPE}, compiled for virtual devices: {text}")
        print(verification.text(rows), end="")


def _calibrate(values: flags.FlagValues) -> int:
    """Measures the devices of this machine, and writes a file for --hardware."""
    _check_file("calibrate", values.calibrate, (".json",))
    command.refuse_other_flags(
        values,
        ("calibrate", "devices"),
        "--calibrate measures this machine, and takes --devices=N alone",
    )
    path, num_devices = Path(values.calibrate), values.devices or 1
    if num_devices > MAX_VIRTUAL_DEVICES:
        raise UsageError(
            f"--devices={num_devices}: one machine has at most {MAX_VIRTUAL_DEVICES} virtual"
            " devices"
        )
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
    """Compiles the fastest ways for virtual devices; returns comparisons in float32 by way."""
    found: dict[str, list[Comparison]] = {}
    num_devices = plan.ranking.best[0].candidate.mesh.num_devices
    if num_devices == 1:
        raise UsageError("--verify compares the exchanges of a mesh: there is one device alone")
    if num_devices > MAX_VIRTUAL_DEVICES:
        raise UsageError(
            f"--verify compiles for at most {MAX_VIRTUAL_DEVICES} virtual devices, and there are"
            f" {num_devices:,}: take fewer, with as many examples for each"
        )
    estimator = float32_estimator(plan.hardware, build)
    for candidate in (one.candidate for one in plan.ranking.best[:MAX_VERIFIED]):
        experiment = build(candidate.settings(plan.workload, plan.rules))
        text, estimate = table.describe(candidate), estimator.estimate(candidate)
        if not found:
            experiment.runtime.make_devices(num_devices)
        found[text] = run_with_clock(
            f"compiling {text}", functools.partial(compare, estimate, experiment)
        )
    return found
