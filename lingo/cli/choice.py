"""The experiment that a command line asks for: by name, by file, or by the directory of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from lingo.cli import command
from lingo.cli.command import UsageError
from lingo.config import registry, text
from lingo.config.overrides import overrides as overrides_
from lingo.config.params import Params
from lingo.config.printable import printable
from lingo.config.registry import Chosen
from lingo.config.roots import roots as roots_
from lingo.config.roots.classes import Classes
from lingo.config.roots.roots import Roots
from lingo.config.serial import serial
from lingo.contract import Experiment, build_experiment
from lingo.runtimes.devices import MAX_DEVICES
from lingo.trainer.directory.run_directory import CONFIG

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
    define_places(values)


def define_places(values: flags.FlagValues) -> None:
    """Defines the flag that says where experiments are."""
    command.strings("params_dir", "A further directory of experiments.", values)


def define_devices(values: flags.FlagValues) -> None:
    """Defines the flag that makes several devices of the processor."""
    command.integer(
        "devices",
        "Make so many devices of the processor, and use no others.",
        values,
        lower_bound=1,
        upper_bound=MAX_DEVICES,
    )


def make_devices(values: flags.FlagValues, experiment: Params) -> None:
    """Makes the devices that the flags ask for, where the experiment's `mesh` computes.

    Raises:
        ParamError: if it has none that could be made.
    """
    if values.devices is not None:
        experiment.mesh.build().make_devices(values.devices)


def places(values: flags.FlagValues) -> Roots:
    """Returns where experiments and classes are looked for."""
    return roots_.find(values.params_dir)


def chosen(values: flags.FlagValues) -> Chosen:
    """Returns the one experiment that the flags ask for, with their overrides.

    Raises:
        UsageError: if they ask for none, or for two.
        ParamError: for every mistake in what they ask for.
    """
    if values.exp is not None and values.run is not None:
        raise UsageError("--exp and --run both name an experiment: give one of them")
    if values.run is not None:
        return of_run(values.run, values.set, values.trust, places(values))
    if values.exp is None:
        raise UsageError("no experiment given: --exp=NAME or --run=DIR. `lingo list` shows names.")
    return named(values.exp, values.set, places(values))


def named(form: str, overrides: Sequence[str], roots: Roots) -> Chosen:
    """Returns an experiment by name or file, as `registry.get` does."""
    return _reported(registry.get(form, overrides, roots))


def of_run(
    directory: str | Path, overrides: Sequence[str], trust: Sequence[str], roots: Roots
) -> Chosen:
    """Returns the experiment of a run.

    Args:
        directory: of the run.
        overrides: further ones, applied in order.
        trust: files outside the trusted places that may be imported.
        roots: the trusted places.

    Raises:
        ParamError: if the directory holds no run, or what it holds cannot be trusted or read; for
            every mistake in the overrides.
    """
    file = Path(directory) / CONFIG
    if not os.path.isfile(file):
        raise UsageError(f"{directory} is no run directory: it holds no {CONFIG}")
    if stuck := next((t for t in overrides if t.startswith(registry.ARGUMENT)), None):
        raise UsageError(
            f"{stuck}: a run has no arguments any more; --exp=... has, or set its fields"
        )
    saved = serial.read(file, trust, roots)
    for path in saved.changed:
        note(f"{path} is not what it was when {directory} began.")
    if text.digest(text.resolve(saved.params)) != saved.digest:
        note(f"{directory} began with other code: what that changed shows against its config.txt.")
    applied = overrides_.apply(saved.params, overrides, Classes(roots))
    origin = saved.origin._replace(overrides=(*saved.origin.overrides, *overrides))
    return _reported(Chosen(saved.params, origin, applied))


def built(choice: Chosen) -> Experiment:
    """Builds what was chosen, as `build_experiment` does."""
    return build_experiment(choice)


def config(choice: Chosen, roots: Roots) -> str:
    """Returns the text of config.json."""
    digest = text.digest(text.resolve(choice.params))
    return serial.dump(choice.params, choice.origin, digest, roots)


def note(line: str) -> None:
    """Says something beside the results."""
    print(f"note: {printable(line)}", file=sys.stderr)


def _reported(choice: Chosen) -> Chosen:
    """Says what overrides could not keep, and returns the choice."""
    for override in choice.applied:
        for line in override.dropped:
            note(f"--set={override.text} drops {line}")
    return choice
