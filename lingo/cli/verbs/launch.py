"""Runs a command as several processes of this machine: the workers of one run.

    lingo launch --workers=2 -- train --exp=lm.source.tiny --logdir=runs/two \\
        --set=runtime=Replicated
    lingo launch --workers=2 -- train --exp=lm.source.tiny --logdir=runs/mesh \\
        --devices=4 '--set=runtime=Mesh(data=2,model=4)'
    lingo launch --workers=2 --logs=logs -- eval --run=runs/two

Each worker runs the command after `--` with a TF_CONFIG that gives its index; any scheduler that
sets TF_CONFIG can run it as well, on many machines. Each line is shown with its worker's index in
front; --logs also writes a file per worker. Ctrl+C, SIGTERM and SIGHUP reach all workers: they save
and stop at the same step. When a worker ends, the others save what they can and end, too; the exit
code is the code of the first that failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from lingo.cli import command, workers
from lingo.cli.command import UsageError, Verb, VerbOptions
from lingo.cli.verbs import decode, eval, predict, train
from lingo.config.options import option, option_class, word
from lingo.config.params import suggest
from lingo.processes.signals import Signals

MOST = 1024
VERBS = {"train": train, "eval": eval, "predict": predict, "decode": decode}


@option_class
class Options(VerbOptions):
    """The options of `lingo launch`."""

    command: Sequence[str] = word("-- VERB [--flags]")
    workers: int | None = option("How many processes.", minimum=1, maximum=MOST)
    logs: str | None = option("A directory for a log of each worker.")


def run(options: Options) -> int:
    """Starts the workers and waits for all; returns the exit code of the first that failed."""
    if options.workers is None:
        raise UsageError("no number of workers given: --workers=N.")
    _check(*options.command)
    program = (sys.executable, "-P", "-m", "lingo.cli.main", *options.command)
    logs = Path(options.logs) if options.logs else None
    addresses = workers.free_addresses(options.workers)
    with Signals() as signals:
        endings = workers.run(program, addresses, signals=signals, logs=logs)
    failed = workers.first_failed(endings)
    if failed is None:
        return 0
    if signals.received is None or failed.exit_code != 128 + signals.received:
        who = f"worker {failed.index} ({addresses[failed.index]})"
        print(f"lingo launch: {who} {failed.words}", file=sys.stderr)
    return failed.exit_code


def _check(verb: str, *arguments: str) -> None:
    """Raises an error for a command that every worker would reject, before any is started."""
    if verb not in VERBS:
        raise UsageError(
            f"{verb!r} is not a verb for several processes: these are {', '.join(VERBS)}."
            f"{suggest(verb, VERBS)}"
        )
    command.read(verb, cast(Verb, VERBS[verb]), arguments)
