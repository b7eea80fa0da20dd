"""Trains an experiment in a directory. The same command resumes what was stopped.

    lingo train --exp=lm.source.tiny --logdir=runs/tiny
    lingo train --exp=lm.source.tiny --logdir=runs/wide --set=exp.model_dim=256
    lingo train --exp=my/file.py:mine --logdir=runs/mine
    lingo train --run=runs/tiny --set=max_steps=5000             goes on with the run
    lingo train --run=runs/tiny --logdir=runs/again              does it once more elsewhere
    lingo train --flagfile=runs/tiny/flags.txt                   as it was called
    lingo train --exp=lm.source.tiny --dry_run                   shows what it would be
    lingo train --exp=lm.source.tiny --logdir=runs/one --overfit --set=max_steps=100
    lingo train --exp=lm.source.tiny --logdir=runs/tiny --profile_steps=10:15

Ctrl+C and SIGTERM save and stop. A directory takes one configuration: what says how a run is
carried out (max_steps, checkpoint, summary, evaluate, ...) may change, else --allow_change.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from absl import flags

from lingo.cli import choice, command
from lingo.cli.command import UsageError
from lingo.config.registry import Chosen
from lingo.config.roots import Roots
from lingo.data.repeated_input import RepeatedInput
from lingo.train.dry_run import dry_run
from lingo.train.record.run_directory import RunDirectory
from lingo.train.run import NO_STEPS, Request, train
from lingo.train.runtimes.devices import split_processor

WORD = ""
FLAGS_FILE = "flags.txt"


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    choice.define(values)
    command.string("logdir", "Directory of the run; that of --run if left out.", values)
    command.boolean("allow_change", "Go on from a checkpoint with another configuration.", values)
    command.boolean("dry_run", "Build, trace and check; train and write nothing.", values)
    command.count("overfit", "Train on the first batch, or the first N, over and over.", values)
    command.string("profile_steps", "Record steps for TensorBoard: from 10:15, five.", values)
    command.integer(
        "devices", "Make so many devices of the processor.", values, lower_bound=1, upper_bound=1024
    )


def run(values: flags.FlagValues, word: str) -> int:
    """Trains; returns 0, or 128 + the signal that ended it early."""
    del word
    logdir = values.logdir or values.run
    if not logdir and not values.dry_run:
        raise UsageError("no directory given: --logdir=DIR.")
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        if values.devices is not None:
            split_processor(values.devices)
        directory = RunDirectory(logdir) if logdir else None
        request = requested(values)
        if values.dry_run or directory is None:
            print(dry_run(request, directory, allow_change=values.allow_change), end="")
            return 0
        outcome = train(request, directory, allow_change=values.allow_change)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0 if outcome.signal is None else 128 + outcome.signal


def requested(values: flags.FlagValues) -> Request:
    """Returns what the flags ask for.

    Raises:
        UsageError, ParamError: for every mistake in them.
    """
    chosen, places = choice.chosen(values), choice.places(values)
    choice.built(chosen)
    if values.overfit is not None:
        _overfit(chosen, values.overfit)
    return Request(
        chosen.params,
        choice.config(chosen, places),
        flags_text(values, chosen, places) if values.logdir or values.run else "",
        chosen.origin,
        NO_STEPS if values.profile_steps is None else _steps(values.profile_steps),
    )


def _overfit(chosen: Chosen, batches: int) -> None:
    """Makes an experiment train on its first batches only."""
    data = chosen.params.train_input
    if data.cls is RepeatedInput:  # the run that --run names does already
        data.batches = batches
    else:
        chosen.params.train_input = RepeatedInput.params(input=data, batches=batches)


def _steps(text: str) -> range:
    """Reads `10:15`."""
    match = re.fullmatch(r"(\d{1,15}):(\d{1,15})", text, re.ASCII)
    if match is None or int(match[1]) >= int(match[2]):
        raise UsageError(
            f"--profile_steps={text}: write FROM:TO, such as 10:15 for the five steps after the"
            " first ten."
        )
    return range(int(match[1]), int(match[2]))


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Ends a run that has not begun: there is nothing to save."""
    del frame
    sys.exit(128 + number)


def flags_text(values: flags.FlagValues, chosen: Chosen, places: Roots) -> str:
    """Returns the lines of a flag file that asks for the same again, from any directory."""
    logdir = Path(values.logdir or values.run).resolve()
    if values.run is not None:
        asked = [f"--run={Path(values.run).resolve()}"]
        asked += [f"--trust={Path(file).resolve()}" for file in values.trust]
    else:
        asked = [f"--exp={_from_anywhere(values.exp, chosen, places)}"]
    asked += [f"--params_dir={Path(directory).resolve()}" for directory in values.params_dir]
    lines = [*asked, f"--logdir={logdir}", *(f"--set={text}" for text in values.set)]
    for name in ("overfit", "devices"):
        if values[name].value is not None:
            lines.append(f"--{name}={values[name].value}")
    if any("\n" in line for line in lines):  # which a flag file cannot hold; config.json does
        lines = [f"--run={logdir}"]
    return "".join(f"{line}\n" for line in lines)


def _from_anywhere(form: str, chosen: Chosen, places: Roots) -> str:
    """Returns how an experiment is asked for where the working directory is another."""
    _, opened, arguments = form.partition("(")
    origin, local = chosen.origin, places.local
    name = origin.name
    if not name or (local is not None and Path(origin.file).is_relative_to(local)):
        name = f"{origin.file}:{origin.function}"
    return name + opened + arguments
