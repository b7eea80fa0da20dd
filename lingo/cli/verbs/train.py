"""Trains an experiment in a directory. The same command resumes a run that was stopped.

    lingo train --exp=lm.source.tiny --logdir=runs/tiny
    lingo train --exp=lm.source.tiny --logdir=runs/wide --set=exp.model_dim=256
    lingo train --exp=my/file.py:mine --logdir=runs/mine
    lingo train --run=runs/tiny --set=max_steps=5000             resumes the run
    lingo train --run=runs/tiny --logdir=runs/again              repeats it elsewhere
    lingo train --flagfile=runs/tiny/flags.txt                   as it was called
    lingo train --exp=lm.source.tiny --dry_run                   shows what it would do
    lingo train --exp=lm.source.tiny --logdir=runs/one --overfit --set=max_steps=100
    lingo train --exp=lm.source.tiny --logdir=runs/tiny --profile_steps=10:15
    lingo train --exp=lm.source.tiny --logdir=runs/tiny --hang_timeout=600

Ctrl+C, SIGTERM and SIGHUP save and stop; Ctrl+C once more stops at once. With --hang_timeout a
second process watches the run: give several times the longest time of a loop of steps, an
evaluation batch or a wait for input. Saving may take 20 times as long, and compiling does not
count. When a run resumes, operational parameters (max_steps, checkpoint, evaluate, ...) may
change; to change any other parameter, add --allow_change.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from lingo.cli import command, experiment_options
from lingo.cli.command import UsageError
from lingo.cli.experiment_options import DeviceOptions, ExperimentOptions
from lingo.cli.options import TrainOptions
from lingo.config import trained_files
from lingo.config.base import types
from lingo.config.node.tree import walk
from lingo.config.options import option, option_class
from lingo.config.params import Params, fields
from lingo.config.registry import ResolvedExperiment
from lingo.config.roots.roots import Roots
from lingo.config.source_files import find_user_files
from lingo.contract import build_experiment
from lingo.data.derived_input import RepeatedInput
from lingo.trainer.directory.run_directory import FLAGS, RunDirectory, flags_text
from lingo.trainer.dry_run import dry_run
from lingo.trainer.guard.hang import Watchdog, supervise
from lingo.trainer.request import NO_STEPS, Request
from lingo.trainer.run import train

# Options, besides the experiment and its overrides, that flags.txt records.
_OPERATIONAL = ("audit", "overfit", "devices", "hang_timeout")

_FILE = re.compile(r"([\w./-]+\.py):")


@option_class
class Options(TrainOptions, ExperimentOptions, DeviceOptions):
    """The options of `lingo train`."""

    logdir: str | None = option("Directory of the run; else the directory that --run names.")
    dry_run: bool = option("Build, trace and check; train and write nothing.", default=False)
    overfit: int | None = option(
        "Train on the first batch, or the first N, over and over.", switch_value=1
    )
    profile_steps: str | None = option("Record steps for TensorBoard, such as 10:15, five steps.")
    hang_timeout: int | None = option(
        "End with code 9 if nothing happens for this number of seconds after the first step, or 20"
        " times as long in a save.",
        minimum=1,
    )


def run(options: Options) -> int:
    """Trains; returns 0, or 128 + the signal that ended the run early."""
    logdir = options.logdir or options.run
    if not logdir and not options.dry_run:
        raise UsageError("no directory given: --logdir=DIR")
    _check_moved(options.flagfile, logdir)
    if options.hang_timeout is None or options.dry_run or not logdir:
        return _run(options, logdir)
    work = functools.partial(_run, options, logdir)
    return supervise(work, RunDirectory(logdir), timeout_seconds=options.hang_timeout)


def _run(options: Options, logdir: str | None, watchdog: Watchdog | None = None) -> int:
    directory = RunDirectory(logdir) if logdir else None
    request = read_request(options)
    options.make_devices(request.params)
    if options.dry_run or directory is None:
        print(dry_run(request, directory), end="")
        return 0
    if options.exp is not None:
        _remember(request)
    outcome = train(request, directory, watchdog=watchdog)
    return 0 if outcome.signal is None else 128 + outcome.signal


def _remember(request: Request) -> None:
    """Records the user's own files as trained, so that `--run` trusts them later."""
    files = request.source.values()
    try:
        trained_files.remember(files)
    except OSError as error:
        names = ", ".join(file.path for file in files)
        experiment_options.print_note(f"--run will need --trust for {names}: {error}")


def read_request(options: Options) -> Request:
    """Returns the training that the flags request; raises ParamError for any mistake in them."""
    resolved, places = options.resolve(), options.roots()
    build_experiment(resolved)
    if options.overfit is not None:
        _overfit(resolved, options.overfit)
    config = experiment_options.config_json(resolved, places)
    return Request(
        resolved.params,
        config,
        _flags(options, resolved, places, config) if options.logdir or options.run else "",
        resolved.origin,
        profile_steps=NO_STEPS if options.profile_steps is None else _steps(options.profile_steps),
        note=options.note,
        tags=options.tag,
        audit=options.audit,
        allow_change=options.allow_change,
        source=find_user_files(resolved.params, resolved.origin.file),
    )


def _check_moved(files: Sequence[str], logdir: str | None) -> None:
    """Raises UsageError if a flag file is the flags.txt of a moved run, with the old --logdir."""
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
    if data.cls is RepeatedInput:  # as in the config of a run with --overfit
        data.batches = batches
    else:
        resolved.params.train_input = RepeatedInput.params(input=data, batches=batches)


def _steps(text: str) -> range:
    """Returns the range of steps that a text such as `10:15` stands for."""
    match = re.fullmatch(r"(\d{1,15}):(\d{1,15})", text, re.ASCII)
    if match is None or int(match[1]) >= int(match[2]):
        raise UsageError(
            f"--profile_steps={text}: write FROM:TO, such as 10:15 for the five steps after the"
            " first ten"
        )
    return range(int(match[1]), int(match[2]))


def _flags(options: Options, resolved: ResolvedExperiment, places: Roots, config: str) -> str:
    """Returns the text of flags.txt, with which the same run can be started from any directory."""
    exp, overrides = "", list(options.set)
    if options.exp is not None and not _name_files(overrides, own=resolved.origin.file):
        exp = _from_anywhere(options.exp, resolved, places)
        overrides += _paths(resolved.params, [exp, *overrides])
    operational = [f"--params_dir={directory}" for directory in places.user_params]
    operational += command.arguments(options, _OPERATIONAL)
    run = Path(options.logdir or str(options.run)).resolve()
    return flags_text(run, config, exp=exp, overrides=overrides, operational=operational)


def _name_files(overrides: Sequence[str], own: str) -> bool:
    """Returns whether overrides may name classes of files, other than `own`, by relative paths.

    From another directory, these overrides mean other files or none.
    """
    files = {file for text in overrides for file in _FILE.findall(text) if os.path.isfile(file)}
    return any(not os.path.isabs(file) and not os.path.samefile(file, own) for file in files)


def _paths(params: Params, given: Sequence[str]) -> list[str]:
    """Returns overrides that set each file path, made absolute, unless a text in `given` has it."""
    paths = {
        f"{where}.{name}": getattr(node, name)
        for where, node in walk(params)
        for name, field in fields(node.cls).items()
        if types.is_file_path(field.hint) and node.is_given(name)
    }
    return [
        f"{where}={path!r}"
        for where, path in paths.items()
        if path is not None and not any(path in text for text in given)
    ]


def _from_anywhere(form: str, resolved: ResolvedExperiment, places: Roots) -> str:
    """Returns the value of --exp in a form that works from any working directory."""
    _, opened, arguments = form.partition("(")
    origin, local = resolved.origin, places.local
    name = origin.name
    if not name or (local is not None and Path(origin.file).is_relative_to(local)):
        name = f"{origin.file}:{origin.function}"
    return name + opened + arguments
