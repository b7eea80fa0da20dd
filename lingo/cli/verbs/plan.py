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

from lingo.cli import allreduce
from lingo.cli.allreduce import AllreduceOptions
from lingo.cli.clock import run_with_clock
from lingo.cli.command import UsageError
from lingo.cli.experiment_options import ExperimentOptions
from lingo.config.classes import Classes
from lingo.config.options import option, option_class
from lingo.config.overrides import apply
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

MAX_VERIFIED = 2
MAX_VARIATION = 10.0
MIN_RATE = 1e-6  # examples a second: one in eleven days


class _Request:
    """An experiment as the flags have it, and how it is built with further overrides."""

    def __init__(self, options: Options) -> None:
        resolved, roots = options.resolve(), options.roots()
        self._resolved, self._classes = resolved, Classes(roots, trust=options.trust)
        batch = batch_settings(resolved.params, options.batch) if options.batch else []
        self._batch, self.name = batch, options.exp or options.run or ""
        self.flag = f"--{'exp' if options.exp else 'run'}={shlex.quote(self.name)}"
        self.overrides = (*options.set, *batch)
        self.experiment = self.build(())
        if options.batch:
            check_batch(self.experiment, options.batch)

    def build(self, settings: Sequence[str]) -> Experiment:
        """Returns the experiment with overrides, as `--set` takes them."""
        params = self._resolved.params.copy()
        apply(params, [*self._batch, *settings], self._classes)
        return build_experiment(self._resolved._replace(params=params))


@option_class
class Options(AllreduceOptions, ExperimentOptions):
    """The options of the verb."""

    devices: int | None = option(
        "How many devices there are; left out: those of the experiment's own runtime.",
        minimum=1,
        maximum=MAX_MESH_DEVICES,
    )
    batch: int | None = option("Examples of a step, in place of the input's.", minimum=1)
    top: int = option("How many ways to show.", default=10, minimum=1)
    price: float | None = option(
        "The price of a device for an hour; shows the price of steps and of the training.",
        minimum=0,
    )
    input_rate: float | None = option("Examples/s that one core of a host makes.", minimum=0)
    input_variation: float | None = option(
        "Standard deviation over mean of the time of a host's batch: uneven hosts are simulated.",
        minimum=0,
        maximum=MAX_VARIATION,
    )
    measure_input: bool = option(
        "Measure both on this machine, for seconds; it reads the data.", default=False
    )
    verify: bool = option("Compile the first two for virtual devices, and compare.", default=False)
    calibrate: str | None = option("Measure --devices of this machine, into this .json file.")


def run(options: Options) -> int:
    """Prints the plan; returns 1 if nothing fits."""
    if planner := allreduce.find_planner(options):
        if options.plot:
            _check_file("plot", options.plot, (".png", ".svg", ".pdf"))
        return allreduce.print_allreduce(planner, options)
    if options.calibrate is not None:
        return _calibrate(options, options.calibrate)
    hardware, request = read(_check_flags(options)), _Request(options)
    left_out = missing_flops(request.experiment)
    load = workload(request.experiment)
    estimator = Estimator(load, hardware, request.build)
    if options.devices is None:
        ranking = rank_own(request.experiment, estimator, hardware)
    else:
        ranking = rank(load, estimator, hardware, options.devices)
    first = ranking.best[0].candidate
    examples = examples_of_host(hardware, load, estimator.rules(first.rules), first)
    plan = Plan(
        name=request.name,
        workload=load,
        hardware=hardware,
        ranking=ranking,
        training=training(request.experiment),
        missing_flops=left_out,
        rate=_rate(options, request.experiment.train_input, examples),
        price=options.price,
        rules=own_rules(request.experiment),
        flag=request.flag,
        is_own=options.devices is None,
        own=request.overrides,
    )
    found = report(plan, estimator, top=options.top)
    if options.plot:
        picture.write(found, Path(options.plot))
    _print(found, _verify(plan, request.build) if options.verify else {}, options)
    return 0 if ranking.feasible else 1


def _check_flags(options: Options) -> str:
    """Returns the hardware; raises UsageError for flags that are missing or do not go together."""
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
    if options.input_rate and options.measure_input:
        raise UsageError("--input_rate is what --measure_input measures: leave one of them out")
    if options.input_variation is not None and not (options.input_rate or options.measure_input):
        raise UsageError(
            "--input_variation needs the rate of a core: --input_rate=EXAMPLES_PER_SECOND, or"
            " --measure_input"
        )
    return options.hardware


def _rate(options: Options, data: Input, num_examples: int) -> InputRate | None:
    """Returns the rate of an input on a core, as given or measured; None without either."""
    if options.input_rate:
        found = InputRate(options.input_rate)
    elif options.measure_input:
        found = run_with_clock("measuring the input", lambda: measure(data, num_examples))
    else:
        return None
    given = options.input_variation
    return found if given is None else found._replace(variation=given)


def _print(found: Report, comparisons: dict[str, list[Comparison]], options: Options) -> None:
    if options.as_json:
        verified = {text: [one._asdict() for one in all_] for text, all_ in comparisons.items()}
        types = {"verified_dtype": verification.DTYPE, "verified": verified}
        print(json.dumps(as_json(found) | types))
        return
    print(table.text(found), end="")
    for text, rows in comparisons.items():
        print(f"\nin {verification.DTYPE}, compiled for virtual devices: {text}")
        print(verification.text(rows), end="")


def _calibrate(options: Options, file: str) -> int:
    """Measures the devices of this machine, and writes a file for --hardware."""
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
