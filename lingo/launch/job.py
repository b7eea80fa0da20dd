"""A job: a run or a sweep that a cluster's scheduler starts, and its record in the run's directory.

launch/experiment.json, .txt      the resolved configuration, as in config.json and config.txt
launch/source/                    the user's own files, which the job's workers import
launch/cluster.toml               the cluster file
launch/job.sbatch, jobset.json    what the scheduler was given
launch/commands.txt               the commands, of a sweep one per trial
launch/job.json                   the scheduler, and the id of the job there
launch/stop                       an empty file: the job is not to be requeued

A config.json would make this folder a run, which is not uploaded with the run around it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lingo.config.base.errors import LingoError
from lingo.config.params import ParamError
from lingo.config.source_files import SourceFile
from lingo.launch.cluster_file import ClusterFile
from lingo.storage import files
from lingo.trainer.directory.run_directory import CONFIG, RunDirectory

FOLDER = "launch"
RECORD = "job.json"
STOP = "stop"
ENDED = "ended"

_FILE = re.compile(r"((?<=^--exp=).+?\.py|[\w./~-]+\.py)(?=:\w)")  # of file.py:name
_CALL_SECONDS = 120


class SchedulerError(LingoError):
    """A scheduler has refused a request."""


class Record(NamedTuple):
    """What is known of a job that was submitted."""

    path: Path  # directory of the run or sweep
    on: str  # the scheduler: slurm, kubernetes
    id: str  # the job's name there
    account: str  # namespace of Kubernetes, or ""
    submitted: str  # date and time
    nodes: int


class Job(NamedTuple):
    """A run or a sweep with what its scheduler needs to know."""

    run: RunDirectory  # of the run or sweep
    commands: tuple[tuple[str, ...], ...]  # arguments of lingo: one, or one per trial of a sweep
    cluster: ClusterFile
    program: tuple[str, ...]  # what stands before the arguments
    is_sweep: bool = False
    num_parallel: int | None = None  # trials at a time; None: no limit

    @property
    def folder(self) -> Path:
        """The folder with the snapshot and the record."""
        return self.run.path / FOLDER

    @property
    def place(self) -> str:
        """The directory of the run, or its address in a bucket."""
        return self.run.address or str(self.run.path)

    def check_shared(self) -> None:
        """Raises ParamError if several nodes would not have the run's directory in common."""
        cluster, place = self.cluster, os.path.abspath(self.run.path)
        if cluster.shared is None:
            if cluster.nodes > 1:
                raise ParamError(
                    f"{cluster.nodes} nodes need a directory that all have in common: name it in"
                    ' the cluster file, such as shared = "/data"'
                )
        elif not Path(place).is_relative_to(cluster.shared):
            raise ParamError(
                f"--logdir={place} is not below {cluster.shared}, which all nodes have in common"
            )


class Scheduler(Protocol):
    """A program that runs jobs on a cluster."""

    name: str  # the value of --on
    program: str  # the command that submits
    file: str  # name of the submitted text in the job's folder
    end_states: tuple[str, ...]  # the values of `state` for a job that has ended

    def check(self, job: Job) -> None:
        """Raises ParamError for a job that cannot run there."""
        ...

    def text(self, job: Job) -> str:
        """Returns the text that is submitted."""
        ...

    def planned_id(self, job: Job) -> str:
        """Returns the id that a job will get, or "" if the scheduler chooses it."""
        ...

    def submit(self, job: Job) -> str:
        """Submits the text in the job's folder; returns the job's id."""
        ...

    def state(self, record: Record) -> str:
        """Returns a job's state in the scheduler's words, or ENDED if it has none."""
        ...

    def logs(self, record: Record) -> str:
        """Returns what a job's workers have printed."""
        ...

    def stop(self, record: Record) -> None:
        """Makes a job save and end, and never start again."""
        ...


def call(program: str, *arguments: str, text: str | None = None) -> str:
    """Runs a scheduler's program with `text` as its input; returns its output.

    Raises ParamError if it is not installed, SchedulerError if it fails.
    """
    try:
        done = subprocess.run(
            [program, *arguments], input=text, capture_output=True, text=True, timeout=_CALL_SECONDS
        )
    except FileNotFoundError:
        raise ParamError(
            f"there is no {program} on this machine: launch where it is installed, or print what"
            " would be submitted by --dry_run"
        ) from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(f"{program} did not answer in {_CALL_SECONDS} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"it ended with code {done.returncode}"
        raise SchedulerError(f"{program} failed: {reason}")
    return done.stdout


def use_copies(
    arguments: Sequence[str], source: Mapping[str, SourceFile], folder: Path
) -> tuple[str, ...]:
    """Returns a command whose Python files are replaced by their copies in the job's folder."""
    copies = {file.path: folder / "source" / name for name, file in source.items() if file.content}

    def replace(match: re.Match[str]) -> str:
        path = os.path.realpath(match[1])
        return str(copies[path]) if path in copies else match[1]

    return tuple(_FILE.sub(replace, argument) for argument in arguments)


def submit(
    job: Job, scheduler: Scheduler, texts: Mapping[str, str], source: Mapping[str, SourceFile]
) -> str:
    """Writes the snapshot of a job (texts, and copies of the user's files); then submits it.

    Returns the job's id. Raises DirectoryLocked if the run is being trained, StorageError if a
    file cannot be written, SchedulerError if the scheduler refuses the job.
    """
    if shutil.which(scheduler.program) is None:
        call(scheduler.program)  # raises the error, before anything is written
    contents = {name: text.encode() for name, text in texts.items()}
    contents |= {f"source/{name}": f.content for name, f in source.items() if f.content is not None}
    contents[scheduler.file] = scheduler.text(job).encode()
    if id := scheduler.planned_id(job):
        contents[RECORD] = _record_text(job, scheduler, id).encode()
    with job.run.lock():  # not while the job is submitted: it may start at once
        for name, content in contents.items():
            path = job.folder / name
            with files.explain_write_errors(path.parent):
                files.make_folder(path.parent, root=job.run.path)
            files.write_bytes(path, content, root=job.run.path)
        with files.explain_write_errors(job.folder / STOP):
            (job.folder / STOP).unlink(missing_ok=True)
    submitted = scheduler.submit(job)
    if not id:
        files.write_text(job.folder / RECORD, _record_text(job, scheduler, submitted))
    return submitted


def _record_text(job: Job, scheduler: Scheduler, id: str) -> str:
    record: dict[str, Any] = {
        "on": scheduler.name,
        "id": id,
        "account": job.cluster.account or "",
        "submitted": time.strftime("%Y-%m-%d %H:%M:%S"),
        "nodes": job.cluster.nodes,
    }
    return json.dumps(record, indent=1) + "\n"


def read_record(path: Path) -> Record | None:
    """Returns the record of the last job of a run or sweep, or None if it has none.

    Raises ParamError for a file that `write_record` has not written.
    """
    text = RunDirectory(path).read(f"{FOLDER}/{RECORD}")
    if text is None:
        return None
    try:
        match json.loads(text):
            case {"on": str(on), "id": str(id), "account": str(account), **rest}:
                return Record(path, on, id, account, str(rest["submitted"]), int(rest["nodes"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ParamError(f"{path / FOLDER / RECORD} is not a file that `lingo launch` wrote")


def find_records(folder: Path) -> Iterator[Record]:
    """Yields the last job of each run and sweep at and below a folder."""
    for path, folders, names in os.walk(folder):
        if FOLDER in folders and (record := read_record(Path(path))) is not None:
            yield record
            folders.clear()
        elif CONFIG in names:
            folders.clear()  # checkpoints and events
        folders.sort()
