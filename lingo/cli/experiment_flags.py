"""The flags that choose an experiment: by name, by file, or by the directory of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from absl import flags

from lingo.checkpoints.checkpoint import Checkpoint
from lingo.cli import command
from lingo.cli.command import UsageError
from lingo.config import registry, text
from lingo.config.overrides.apply import apply
from lingo.config.params import Params
from lingo.config.printable import escape_controls
from lingo.config.registry import ResolvedExperiment
from lingo.config.roots.classes import Classes
from lingo.config.roots.roots import Roots
from lingo.config.serial import serial
from lingo.runtimes.devices import MAX_VIRTUAL_DEVICES
from lingo.trainer.directory.run_directory import CONFIG, RunDirectory
from lingo.trainer.evaluation.best import BEST

_EXPERIMENT = "An experiment: name, name(argument=value) or file.py:function."
_RUN = "Directory of a run, instead of an experiment's name."


def define(values: flags.FlagValues, *, several: bool = False) -> None:
    """Defines the flags that choose an experiment; `several` of them, or one."""
    flag = command.strings if several else command.string
    flag("exp", _EXPERIMENT, values)
    define_run(values, several=several)


def define_run(values: flags.FlagValues, *, several: bool = False) -> None:
    """Defines the flags that choose a run."""
    flag = command.strings if several else command.string
    flag("run", _RUN, values)
    command.strings(
        "set", "path=value, Class.field=value, Class=Other(...) or exp.argument=value.", values
    )
    command.strings("trust", "A file that --run may import, where a run's own classes are.", values)
    command.define_params_dir(values)


def define_step(values: flags.FlagValues) -> None:
    """Defines the flag that chooses a checkpoint."""
    command.string("step", "The checkpoint of this step, or the best one; else the latest.", values)


def read_step(text: str | None) -> int | Literal["best"] | None:
    """Returns the step of `--step`; raises UsageError if it is not a number or `best`."""
    if text is None or text == BEST:
        return text
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise UsageError(f"--step={text} is not a step: a number, or {BEST}")
    return int(text)


def define_weights(values: flags.FlagValues) -> None:
    """Defines the flag that chooses between trained weights and their averages."""
    command.string("weights", "trained or ema, in place of evaluate.weights.", values)


def resolve_run_with_weights(values: flags.FlagValues) -> ResolvedExperiment:
    """Returns the experiment of `--run` with its overrides and `--weights`, as `resolve_run`."""
    weights = [f"evaluate.weights={values.weights}"] if values.weights else []
    return resolve_run(values, [*values.set, *weights])


def define_devices(values: flags.FlagValues) -> None:
    """Defines the flag that splits the CPU into several devices."""
    command.integer(
        "devices",
        "Make so many devices of the processor, and use no others.",
        values,
        lower_bound=1,
        upper_bound=MAX_VIRTUAL_DEVICES,
    )


def make_devices(values: flags.FlagValues, experiment: Params) -> None:
    """Makes the number of devices in `--devices`, as the experiment's `runtime` needs them."""
    if values.devices is not None:
        experiment.runtime.build().make_devices(values.devices)


def resolve(values: flags.FlagValues) -> ResolvedExperiment:
    """Returns the experiment of the flags and their overrides; raises ParamError for a mistake."""
    if values.exp is not None and values.run is not None:
        raise UsageError("--exp and --run both name an experiment: give one of them")
    if values.run is not None:
        return resolve_run(values, values.set)
    if values.exp is None:
        raise UsageError("no experiment given: --exp=NAME or --run=DIR. `lingo list` shows names.")
    return resolve_name(values.exp, values.set, command.find_roots(values))


def resolve_name(form: str, overrides: Sequence[str], roots: Roots) -> ResolvedExperiment:
    """Returns the experiment of a name or file, as `registry.get` does, and prints notes."""
    return _report_dropped(registry.get(form, overrides, roots))


def resolve_run(values: flags.FlagValues, overrides: Sequence[str]) -> ResolvedExperiment:
    """Returns the experiment of `--run`, with further overrides."""
    return read_run(values.run, overrides, values.trust, command.find_roots(values))


def read_run(
    directory: str, overrides: Sequence[str], trust: Sequence[str], roots: Roots
) -> ResolvedExperiment:
    """Returns the experiment of a run, with further overrides.

    Raises ParamError if there is no run, or its configuration is not trusted or readable.
    """
    file = Path(directory) / CONFIG
    if not os.path.lexists(file):
        raise UsageError(f"{directory} is not a run directory: it holds no {CONFIG}")
    if stuck := next((t for t in overrides if t.startswith(registry.ARGUMENT)), None):
        raise UsageError(
            f"{stuck}: a run has no arguments any more; --exp=... has, or set its fields"
        )
    saved = serial.read(file, trust, roots)
    changed = RunDirectory(directory).changed_source(saved.params)
    for path in dict.fromkeys([*saved.changed_files, *changed]):
        print_note(f"{path} is not what it was when {directory} began.")
    if text.digest(text.resolve(saved.params)) != saved.digest:
        print_note(
            f"{directory} began with other code: what that changed shows against its config.txt."
        )
    results = apply(saved.params, overrides, Classes(roots, trust=trust))
    origin = saved.origin._replace(overrides=(*saved.origin.overrides, *overrides))
    return _report_dropped(ResolvedExperiment(saved.params, origin, results))


def config_json(resolved: ResolvedExperiment, roots: Roots) -> str:
    """Returns the text of config.json."""
    digest = text.digest(text.resolve(resolved.params))
    return serial.dump(resolved.params, resolved.origin, digest, roots)


def print_note(line: str) -> None:
    """Prints a note to stderr."""
    print(f"note: {escape_controls(line)}", file=sys.stderr)


def print_later_errors(checkpoint: Checkpoint) -> None:
    """Prints a note on each newer checkpoint that is damaged."""
    for error in checkpoint.later_errors:
        print_note(f"passed over: {error}")


def _report_dropped(resolved: ResolvedExperiment) -> ResolvedExperiment:
    """Prints a note on the values that an override dropped, and returns the experiment."""
    for result in resolved.override_results:
        if result.dropped_values:
            print_note(f"--set={result.text} drops {'; '.join(result.dropped_values)}")
    return resolved
