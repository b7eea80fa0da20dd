"""Trains an experiment in a directory. The same command resumes what was stopped.

    lingo train --exp=lm.source.tiny --logdir=runs/tiny
    lingo train --exp=lm.source.tiny --logdir=runs/wide --set=exp.model_dim=256
    lingo train --exp=my/file.py:mine --logdir=runs/mine
    lingo train --run=runs/tiny --set=max_steps=5000             resumes the run
    lingo train --run=runs/tiny --logdir=runs/again              repeats it elsewhere
    lingo train --flagfile=runs/tiny/flags.txt                   as it was called
    lingo train --exp=lm.source.tiny --dry_run                   shows what it would be
    lingo train --exp=lm.source.tiny --logdir=runs/one --overfit --set=max_steps=100
    lingo train --exp=lm.source.tiny --logdir=runs/tiny --profile_steps=10:15
    lingo train --exp=lm.source.tiny --logdir=runs/tiny --hang_timeout=600

Ctrl+C, SIGTERM and SIGHUP save and stop; Ctrl+C once more stops at once. With --hang_timeout a
second process watches: give several times what the slowest loop of steps, batch of an evaluation or
wait for input takes; saving may take 20 times as long, and compiling does not count. A directory
takes one configuration: what says how a run is carried out (max_steps, checkpoint, summary,
evaluate, ...) may change, else --allow_change.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from lingo.cli import command, experiment_flags
from lingo.cli.command import UsageError
from lingo.config import trained_files, types
from lingo.config.node.tree import walk
from lingo.config.params import Params, fields
from lingo.config.registry import ResolvedExperiment
from lingo.config.roots.roots import Roots
from lingo.config.source_files import find_user_files
from lingo.contract import build_experiment
from lingo.data.repeated_input import RepeatedInput
from lingo.trainer.directory.run_directory import FLAGS, RunDirectory, flags_text
from lingo.trainer.dry_run import dry_run
from lingo.trainer.guard.hang import Watchdog, supervise
from lingo.trainer.request import NO_STEPS, Request
from lingo.trainer.run import train

WORD = ""  # it takes no word beside its flags


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    experiment_flags.define(values)
    command.string("logdir", "Directory of the run; that of --run if left out.", values)
    command.boolean("allow_change", "Resume from a checkpoint with another configuration.", values)
    command.boolean("dry_run", "Build, trace and check; train and write nothing.", values)
    command.count("overfit", "Train on the first batch, or the first N, over and over.", values)
    command.string("profile_steps", "Record steps for TensorBoard: from 10:15, five.", values)
    command.boolean("audit", "Write loss and examples of every step into audit.jsonl.", values)
    command.integer(
        "hang_timeout",
        "End with code 9 if nothing happens for so many seconds after the first step; 20 times as"
        " many in a save.",
        values,
        lower_bound=1,
    )
    experiment_flags.define_devices(values)


def run(values: flags.FlagValues, word: str) -> int:
    """Trains; returns 0, or 128 + the signal that ended it early."""
    del word
    logdir = values.logdir or values.run
    if not logdir and not values.dry_run:
        raise UsageError("no directory given: --logdir=DIR")
    _check_moved(values.flagfile, logdir)
    if values.hang_timeout is None or values.dry_run:
        return _run(values, logdir)
    work = functools.partial(_run, values, logdir)
    return supervise(work, RunDirectory(logdir), timeout_seconds=values.hang_timeout)


def _run(values: flags.FlagValues, logdir: str | None, watchdog: Watchdog | None = None) -> int:
    directory = RunDirectory(logdir) if logdir else None
    request = read_request(values)
    experiment_flags.make_devices(values, request.params)
    if values.dry_run or directory is None:
        print(dry_run(request, directory), end="")
        return 0
    if values.exp is not None:
        _remember(request)
    outcome = train(request, directory, watchdog=watchdog)
    return 0 if outcome.signal is None else 128 + outcome.signal


def _remember(request: Request) -> None:
    """Remembers the user's own files of an experiment, so that `--run` trusts them later."""
    files = request.source.values()
    try:
        trained_files.remember(files)
    except OSError as error:
        names = ", ".join(file.path for file in files)
        experiment_flags.print_note(f"--run will need --trust for {names}: {error}")


def read_request(values: flags.FlagValues) -> Request:
    """Returns the request of the flags; raises ParamError for every mistake in them."""
    resolved, places = experiment_flags.resolve(values), command.find_roots(values)
    build_experiment(resolved)
    if values.overfit is not None:
        _overfit(resolved, values.overfit)
    config = experiment_flags.config_json(resolved, places)
    return Request(
        resolved.params,
        config,
        _flags(values, resolved, places, config) if values.logdir or values.run else "",
        resolved.origin,
        NO_STEPS if values.profile_steps is None else _steps(values.profile_steps),
        values.audit,
        values.allow_change,
        find_user_files(resolved.params, resolved.origin.file),
    )


def _check_moved(files: Sequence[str], logdir: str | None) -> None:
    """Raises UsageError for the flags.txt of a run that was moved: it names the old directory."""
    for file in files:
        home = Path(file).resolve().parent
        there = Path(file).name == FLAGS and RunDirectory(home).exists
        if there and logdir and Path(logdir).resolve() != home:
            raise UsageError(
                f"{file} names {logdir}, but is in {home}: that run was moved or copied."
                f" To resume it where it is: lingo train --run={shlex.quote(str(home))}"
            )


def _overfit(resolved: ResolvedExperiment, batches: int) -> None:
    """Makes an experiment train on its first batches only."""
    data = resolved.params.train_input
    if data.cls is RepeatedInput:  # the run of --run already has it
        data.batches = batches
    else:
        resolved.params.train_input = RepeatedInput.params(input=data, batches=batches)


def _steps(text: str) -> range:
    """Returns the range of a text `10:15`."""
    match = re.fullmatch(r"(\d{1,15}):(\d{1,15})", text, re.ASCII)
    if match is None or int(match[1]) >= int(match[2]):
        raise UsageError(
            f"--profile_steps={text}: write FROM:TO, such as 10:15 for the five steps after the"
            " first ten"
        )
    return range(int(match[1]), int(match[2]))


def _flags(
    values: flags.FlagValues, resolved: ResolvedExperiment, places: Roots, config: str
) -> str:
    """Returns the text of flags.txt."""
    exp, overrides = "", list(values.set)
    if values.run is None:
        exp = _from_anywhere(values.exp, resolved, places)
        overrides += _paths(resolved.params, [exp, *overrides])
    operational = [f"--params_dir={directory}" for directory in places.user_params]
    operational += ["--audit"] if values.audit else []
    for name in ("overfit", "devices", "hang_timeout"):
        if values[name].value is not None:
            operational.append(f"--{name}={values[name].value}")
    run = Path(values.logdir or str(values.run)).resolve()
    return flags_text(run, config, exp=exp, overrides=overrides, operational=operational)


def _paths(params: Params, asked: Sequence[str]) -> list[str]:
    """Returns overrides that set each path absolutely, unless the request already does."""
    found = {
        f"{where}.{name}": getattr(node, name)
        for where, node in walk(params)
        for name, field in fields(node.cls).items()
        if types.is_file_path(field.hint) and node.is_given(name)
    }
    return [
        f"{where}={path!r}"
        for where, path in found.items()
        if path is not None and not any(path in text for text in asked)
    ]


def _from_anywhere(form: str, resolved: ResolvedExperiment, places: Roots) -> str:
    """Returns a value of --exp that works from any working directory."""
    _, opened, arguments = form.partition("(")
    origin, local = resolved.origin, places.local
    name = origin.name
    if not name or (local is not None and Path(origin.file).is_relative_to(local)):
        name = f"{origin.file}:{origin.function}"
    return name + opened + arguments
