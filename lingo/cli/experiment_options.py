"""The options that choose an experiment by its name, its file, or the directory of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lingo.checkpoints.checkpoint import Checkpoint
from lingo.cli.command import RootOptions, UsageError, VerbOptions
from lingo.cli.options import TrustOptions
from lingo.config import registry, serial, text
from lingo.config.classes import Classes
from lingo.config.options import option, option_class
from lingo.config.overrides import apply
from lingo.config.params import Params
from lingo.config.printable import escape_controls
from lingo.config.registry import ResolvedExperiment
from lingo.config.roots.roots import Roots
from lingo.runtimes.devices import MAX_VIRTUAL_DEVICES
from lingo.trainer.directory.run_directory import CONFIG, RunDirectory

EXPERIMENT = "An experiment: name, name(argument=value) or file.py:function."
RUN = "Directory of a run, instead of an experiment's name."


@option_class
class OverrideOptions(TrustOptions, RootOptions):
    """The options that change an experiment (`--set`), and say which code it may import."""

    set: Sequence[str] = option(
        "path=value, Class.field=value, Class=Other(...) or exp.argument=value.", default=()
    )


@option_class
class RunOptions(OverrideOptions):
    """The options of verbs that read an experiment from a run's directory."""

    run: str | None = option(RUN)

    def require_run(self) -> str:
        """Returns `--run`, the directory of the run; raises UsageError if it is not given."""
        if self.run is None:
            raise UsageError("no run given: --run=DIR")
        return self.run

    def resolve_run(self, overrides: Sequence[str] | None = None) -> ResolvedExperiment:
        """Returns the experiment of `--run` with `overrides`, or with `--set` if they are None."""
        overrides = self.set if overrides is None else overrides
        return read_run(self.require_run(), overrides, self.trust, self.roots())


@option_class
class ExperimentOptions(RunOptions):
    """The options of verbs that take an experiment by name (`--exp`) or from a run (`--run`)."""

    exp: str | None = option(EXPERIMENT)

    def resolve(self) -> ResolvedExperiment:
        """Returns the experiment that the flags choose, with `--set` applied.

        Raises ParamError for a mistake.
        """
        if self.exp is not None and self.run is not None:
            raise UsageError("--exp and --run both name an experiment: give one of them")
        if self.run is not None:
            return self.resolve_run()
        if self.exp is None:
            raise UsageError(
                "no experiment given: --exp=NAME or --run=DIR. `lingo list` shows names."
            )
        return resolve_name(self.exp, self.set, self.roots())


@option_class
class WeightOptions(RunOptions):
    """The options of verbs that use either the trained weights or their averages (EMA)."""

    weights: str | None = option("trained or ema, in place of evaluate.weights.")

    def resolve_with_weights(self) -> ResolvedExperiment:
        """Returns the experiment of `--run` with its overrides and `--weights`."""
        weights = [f"evaluate.weights={self.weights}"] if self.weights else []
        return self.resolve_run([*self.set, *weights])


@option_class
class DeviceOptions(VerbOptions):
    """The option that splits the CPU into several devices."""

    devices: int | None = option(
        "Split the processor into this number of devices, and use no others.",
        minimum=1,
        maximum=MAX_VIRTUAL_DEVICES,
    )

    def make_devices(self, experiment: Params) -> None:
        """Splits the CPU into `--devices` virtual devices, if given, for the runtime."""
        if self.devices is not None:
            experiment.runtime.build().make_devices(self.devices)


def resolve_name(form: str, overrides: Sequence[str], roots: Roots) -> ResolvedExperiment:
    """Returns the experiment of a request, as `registry.get` does; prints a note on lost values."""
    return _report_dropped(registry.get(form, overrides, roots))


def read_run(
    directory: str, overrides: Sequence[str], trust: Sequence[str], roots: Roots
) -> ResolvedExperiment:
    """Returns the experiment of a run with further overrides; prints notes on what has changed.

    Raises ParamError if the directory has no run, or if the run's configuration is not trusted or
    not readable.
    """
    file = Path(directory) / CONFIG
    if not os.path.lexists(file):
        raise UsageError(f"{directory} is not a run directory: it holds no {CONFIG}")
    if stuck := next((t for t in overrides if t.startswith(registry.ARGUMENT)), None):
        raise UsageError(
            f"{stuck}: a run has no arguments any more; give them to --exp=..., or set its fields"
        )
    saved = serial.read(file, trust, roots)
    changed = RunDirectory(directory).changed_source(saved.params)
    for path in dict.fromkeys([*saved.changed_files, *changed]):
        print_note(f"{path} is not what it was when {directory} began.")
    if text.digest(text.resolve(saved.params)) != saved.digest:
        print_note(
            f"{directory} began with other code: its config.txt has the parameters as they were."
        )
    results = apply(saved.params, overrides, Classes(roots, trust=trust))
    origin = saved.origin._replace(overrides=(*saved.origin.overrides, *overrides))
    return _report_dropped(ResolvedExperiment(saved.params, origin, results))


def config_json(resolved: ResolvedExperiment, roots: Roots) -> str:
    """Returns the text of config.json for an experiment."""
    digest = text.digest(text.resolve(resolved.params))
    return serial.dump(resolved.params, resolved.origin, digest, roots)


def print_note(line: str) -> None:
    """Prints a note to stderr."""
    print(f"note: {escape_controls(line)}", file=sys.stderr)


def print_later_errors(checkpoint: Checkpoint) -> None:
    """Prints a note on each damaged checkpoint that is later than the one that was chosen."""
    for error in checkpoint.later_errors:
        print_note(f"passed over: {error}")


def _report_dropped(resolved: ResolvedExperiment) -> ResolvedExperiment:
    """Prints a note on values that were lost when overrides swapped classes, or set new objects.

    Returns the experiment.
    """
    for result in resolved.override_results:
        if result.dropped_values:
            print_note(f"--set={result.text} drops {'; '.join(result.dropped_values)}")
        if result.left_out:
            print_note(f"--set={result.text} leaves out {result.left_out}")
    return resolved
