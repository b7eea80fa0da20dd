"""Trains an experiment in a directory. The same command resumes what was stopped.

    lingo train --exp=lm.source.tiny --logdir=runs/tiny
    lingo train --exp=lm.source.tiny --logdir=runs/wide --set=exp.model_dim=256
    lingo train --exp=my/file.py:mine --logdir=runs/mine
    lingo train --run=runs/tiny --set=max_steps=5000             goes on with the run
    lingo train --run=runs/tiny --logdir=runs/again              does it once more elsewhere
    lingo train --flagfile=runs/tiny/flags.txt                   as it was called

Ctrl+C and SIGTERM save and stop. A directory takes one configuration: what says how a run is
carried out (max_steps, checkpoint, summary, evaluate, ...) may change, else --allow_change.
"""

from __future__ import annotations

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
from lingo.train.record.run_directory import RunDirectory
from lingo.train.run import Request, train

WORD = ""
FLAGS_FILE = "flags.txt"


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    choice.define(values)
    command.string("logdir", "Directory of the run; that of --run if left out.", values)
    command.boolean("allow_change", "Go on from a checkpoint with another configuration.", values)


def run(values: flags.FlagValues, word: str) -> int:
    """Trains; returns 0, or 128 + the signal that ended it early."""
    del word
    logdir = values.logdir or values.run
    if not logdir:
        raise UsageError("no directory given: --logdir=DIR.")
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        chosen, places = choice.chosen(values), choice.places(values)
        choice.built(chosen)
        request = Request(
            chosen.params, choice.config(chosen, places), flags_text(values, chosen, places)
        )
        outcome = train(request, RunDirectory(logdir), allow_change=values.allow_change)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0 if outcome.signal is None else 128 + outcome.signal


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
