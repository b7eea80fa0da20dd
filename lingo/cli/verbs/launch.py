"""Runs a command as several processes: on this machine, or as a job of Slurm or Kubernetes.

    lingo launch --workers=2 -- train --exp=lm.source.tiny --logdir=runs/two \\
        --set=runtime=Replicated
    lingo launch --workers=2 --logs=logs -- eval --run=runs/two
    lingo launch --on=slurm --cluster=cluster.toml -- train --exp=my/file.py:mine \\
        --logdir=/data/runs/mine
    lingo launch --on=slurm --cluster=cluster.toml -- sweep --exp=lm.source.tiny \\
        --logdir=/data/runs/sweep --sweep=optimizer.learning_rate=1e-3,3e-3
    lingo launch --on=kubernetes --cluster=cluster.toml --dry_run -- train ...
    lingo launch list --run=/data/runs          jobs of the runs there, and their states
    lingo launch logs --run=/data/runs/mine     what its workers have printed
    lingo launch stop --run=/data/runs/mine     saves and ends; the job is not requeued

Here, each worker runs the command after `--` with a TF_CONFIG that gives its index. Each line is
shown with its worker's index in front; --logs also writes a file per worker. Ctrl+C, SIGTERM and
SIGHUP reach all workers: they save and stop at the same step. When a worker ends, the others save
what they can and end, too; the exit code is the code of the first that failed.

On a cluster, the resolved configuration and copies of your own files are written into the run's
directory, and the job uses these copies. Before its time limit it saves, and is requeued. A sweep
is an array of jobs. docs/slurm.md has the keys of the cluster file.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from lingo.cli import buckets, command, workers
from lingo.cli.command import UsageError, Verb, VerbOptions
from lingo.cli.verbs import decode, eval, predict, sweep, train
from lingo.config import text
from lingo.config.base.errors import LingoError
from lingo.config.options import declarations, option, option_class, word
from lingo.config.params import suggest
from lingo.config.printable import escape_controls, escape_text
from lingo.config.source_files import SourceFile
from lingo.launch import cluster_file, job
from lingo.launch.kubernetes import Kubernetes
from lingo.launch.slurm import COMMANDS, Slurm
from lingo.processes.signals import Signals
from lingo.storage.bucket import cache
from lingo.study.plan import remaining_trials
from lingo.study.report import align
from lingo.trainer.directory.run_directory import RunDirectory

MOST = 1024
VERBS = {"train": train, "eval": eval, "predict": predict, "decode": decode}
JOBS = {"train": train, "sweep": sweep}  # on a cluster
SCHEDULERS: Mapping[str, job.Scheduler] = {one.name: one for one in (Slurm(), Kubernetes())}
HEAD = ("run", "on", "job", "state", "status", "submitted")

_LAUNCH = ("on", "cluster", "dry_run", "flagfile")


@option_class
class Options(VerbOptions):
    """The options of `lingo launch`."""

    action: str = word("[list|logs|stop]")
    command: Sequence[str] = word("-- VERB [--flags]")
    workers: int | None = option("How many processes.", minimum=1, maximum=MOST)
    logs: str | None = option("A directory for a log of each worker.")
    on: Literal["local", "slurm", "kubernetes"] = option("Where to run.", default="local")
    cluster: str | None = option("The cluster file: nodes, devices, time, account, ... in TOML.")
    dry_run: bool = option("Print what would be submitted.", default=False)
    run: str | None = option("Of list: a directory above runs; of logs, stop: a run or sweep.")


def run(options: Options) -> int:
    """Runs the workers, submits the job, or tells of jobs.

    Returns 0, or the exit code of the first local worker that failed.
    """
    if options.action:
        _act(options)
        return 0
    if options.run is not None:
        raise UsageError("--run is for list, logs and stop")
    if options.on != "local":
        _submit(options)
        return 0
    if options.cluster is not None or options.dry_run:
        raise UsageError("--cluster and --dry_run are for --on=slurm and --on=kubernetes")
    return _run_workers(options)


# ---- workers of this machine ---------------------------------------------------------------------


def _run_workers(options: Options) -> int:
    """Starts the workers and waits for all; returns the exit code of the first that failed."""
    if options.workers is None:
        raise UsageError("no number of workers given: --workers=N.")
    _read_inner(options.command, VERBS, "for several processes")
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


def _read_inner(arguments: Sequence[str], verbs: Mapping[str, Any], where: str) -> Any:
    """Returns the options of the command after `--`; raises UsageError for a mistake in it."""
    verb, *rest = arguments
    if verb not in verbs:
        raise UsageError(
            f"{verb!r} is not a verb {where}: these are {', '.join(verbs)}.{suggest(verb, verbs)}"
        )
    return command.read(verb, cast(Verb, verbs[verb]), rest)


# ---- jobs of a cluster ---------------------------------------------------------------------------


class _Work(NamedTuple):
    """What a job does: the commands of its runs, and what is written before."""

    logdir: Path
    commands: list[tuple[str, ...]]  # arguments of lingo
    texts: dict[str, str]  # of the job's folder, by name
    source: Mapping[str, SourceFile]  # the user's own files
    num_parallel: int | None = None  # trials at a time


def _submit(options: Options) -> None:
    scheduler, verb = SCHEDULERS[options.on], options.command[0]
    options.refuse_others(_LAUNCH, f"--on={options.on} takes its workers from the cluster file")
    if options.cluster is None:
        raise UsageError(f"--on={options.on} needs a cluster file: --cluster=cluster.toml")
    cluster = cluster_file.read(options.cluster)
    inner = _read_inner(options.command, JOBS, "for a job of a cluster")
    if inner.run is not None:
        buckets.bring_down(verb, inner)
    work = _sweep_work(inner) if verb == "sweep" else _train_work(inner)
    directory = RunDirectory(work.logdir)
    inside = cluster.image is not None  # the image has its own lingo
    program = ("lingo",) if inside else (sys.executable, "-P", "-m", "lingo.cli.main")
    folder = directory.path / job.FOLDER
    copies = {} if directory.address is not None else work.source  # pods have no local copy
    commands = tuple(job.use_copies(one, copies, folder) for one in work.commands)
    one = job.Job(
        directory, commands, cluster, program, verb == "sweep", num_parallel=work.num_parallel
    )
    scheduler.check(one)
    listed = "".join(f"{shlex.join([*program, *arguments])}\n" for arguments in commands)
    if options.dry_run:
        print(scheduler.text(one) + (f"\n# {COMMANDS}\n{listed}" if one.is_sweep else ""), end="")
        return
    buckets.bring_down(verb, inner)  # the record of an earlier job
    _refuse_second(directory.path)
    texts = {**work.texts, "cluster.toml": Path(options.cluster).read_text(), COMMANDS: listed}
    id = job.submit(one, scheduler, texts, work.source)
    print(f"{options.on}: job {id}, logs by: lingo launch logs --run={shlex.quote(one.place)}")


def _train_work(options: train.Options) -> _Work:
    """Returns the work of `lingo train`."""
    logdir = options.logdir or options.run
    if not logdir or options.dry_run:
        raise UsageError("a job trains in a directory: --logdir=DIR, without --dry_run")
    request = train.read_request(options)
    given = options.run and _place(options.run)
    changed = dataclasses.replace(options, logdir=_place(logdir), run=given)
    resolved = text.render(text.resolve(request.params))
    texts = {"experiment.json": request.config, "experiment.txt": resolved}
    return _Work(Path(logdir).absolute(), [("train", *_flags(changed))], texts, request.source)


def _place(directory: str) -> str:
    """Returns a run's directory from anywhere: its absolute path, or its address in a bucket."""
    return cache.address_of(directory) or os.path.abspath(directory)


def _sweep_work(options: sweep.Options) -> _Work:
    """Returns the work of the trials of `lingo sweep` that are not done."""
    if options.print:
        raise UsageError("a job prints no commands: leave out --print, or use --dry_run")
    request = sweep.read_request(options)
    request = request._replace(logdir=request.logdir.absolute())
    trials = remaining_trials(request)
    if not trials:
        raise UsageError(f"all trials of {request.logdir} are done")
    limit = options.workers if "workers" in options.flag_names else None
    commands = [trial.arguments for trial in trials]
    return _Work(request.logdir, commands, {}, request.source, num_parallel=limit)


def _flags(options: VerbOptions) -> list[str]:
    """Returns a verb's options as flags, with the flags of flag files in their place."""
    fields = [declared.field for declared in declarations(type(options))]
    return command.arguments(options, [field for field in fields if field != "flagfile"])


def _refuse_second(path: Path) -> None:
    """Raises UsageError if a job of a run or sweep has not ended."""
    if (record := job.read_record(path)) is not None:
        scheduler = SCHEDULERS[record.on]
        if (state := scheduler.state(record)) not in scheduler.end_states:
            raise UsageError(
                f"{path} has job {record.id} already, which is {state}: wait for its end, or"
                f" lingo launch stop --run={shlex.quote(str(path))}"
            )


def _act(options: Options) -> None:
    """Lists jobs, prints a job's logs, or stops it."""
    options.refuse_others(["run", "flagfile"], f"{options.action} takes --run only")
    match options.action:
        case "list":
            _print_list(Path(options.run or "runs"))
        case "logs" | "stop":
            if options.run is None:
                raise UsageError(f"no run given: lingo launch {options.action} --run=DIR")
            record = job.read_record(Path(options.run))
            if record is None:
                raise UsageError(f"{options.run} was not launched on a cluster")
            if options.action == "logs":
                print(escape_text(SCHEDULERS[record.on].logs(record)), end="")
            else:
                SCHEDULERS[record.on].stop(record)
        case other:
            raise UsageError(
                f"{other!r} is not list, logs or stop; a command stands after --:"
                f" lingo launch --workers=2 -- {other}"
            )


def _print_list(folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a directory: name the one that holds runs, --run=DIR")
    rows = [_row(record) for record in job.find_records(folder)]
    print(escape_controls("\n".join(align([HEAD, *rows]))) if rows else f"no jobs below {folder}")


def _row(record: job.Record) -> tuple[str, ...]:
    status = RunDirectory(record.path).status()
    try:
        state = SCHEDULERS[record.on].state(record)
    except LingoError:  # its scheduler is on another machine
        state = "unknown"
    done = status.line.strip() if status else ""
    return str(record.path), record.on, record.id, state, done, record.submitted
