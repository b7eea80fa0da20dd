"""Slurm: an `sbatch` script that trains a run, or a sweep as an array of jobs.

Slurm sends SIGTERM to the workers before the time limit. They save and end with code 143, and the
script requeues the job, which resumes the run. It also requeues a job whose workers have failed,
except with the codes of mistakes, which another start would repeat. Code 6, a lock of another
process, may pass: the lease of a process that was killed ends in time.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lingo.config.params import ParamError
from lingo.launch.job import ENDED, FOLDER, STOP, Job, Record, SchedulerError, call
from lingo.storage.files import explain_write_errors

COMMANDS = "commands.txt"
_LOGS = "slurm-{}.log"

# The squeue command prints nothing for a job that a user or the time limit has ended meanwhile.
_REQUEUE = """\
case $code in 0 | [2-57-8] | 130) exit "$code" ;; esac
[ -e {stop} ] && exit "$code"
job=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
job=${{job:-$SLURM_JOB_ID}}
if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {limit} ]; then
    echo "lingo: ended with code $code, and was requeued {limit} times: not requeued again" >&2
elif [ "$(squeue --noheader --jobs="$job" --format=%T)" = RUNNING ]; then
    scontrol requeue "$job"
fi
exit "$code"
"""

# Jobs that share a node have different ports.
_ADDRESSES = """\
workers=
port=$((10000 + SLURM_JOB_ID * {count} % 20000))
for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    for ((i = 0; i < {count}; i++)); do workers+=${{workers:+, }}\\"$host:$((port + i))\\"; done
done
export workers
"""
_WORKER = """\
bash -c '
    task="{\\"type\\": \\"worker\\", \\"index\\": $SLURM_PROCID}"
    export TF_CONFIG="{\\"cluster\\": {\\"worker\\": [$workers]}, \\"task\\": $task}"
    exec "$@"' worker"""


class Slurm:
    """Slurm, by `sbatch`, `squeue` and `scancel`."""

    name = "slurm"
    program = "sbatch"
    file = "job.sbatch"
    end_states = (ENDED,)

    def check(self, job: Job) -> None:
        cluster = job.cluster
        if job.run.address is not None:
            raise ParamError(
                f"--logdir={job.place}: Slurm writes logs into the run's directory: name one that"
                " all nodes have in common, and copy the run by `lingo copy`"
            )
        job.check_shared()
        if cluster.image and cluster.shared is None:
            raise ParamError("the cluster file has an image, but no `shared` to mount in it")

    def text(self, job: Job) -> str:
        cluster, folder = job.cluster, job.folder
        lines = ["#!/usr/bin/env bash", *(f"#SBATCH --{line}" for line in _options(job))]
        lines += [f"export {key}={shlex.quote(str(v))}" for key, v in cluster.environment.items()]
        lines += ["export PYTHONUNBUFFERED=1", f"cd {shlex.quote(os.getcwd())}"]
        if job.is_sweep:
            file = shlex.quote(str(folder / COMMANDS))
            lines.append(f'eval "command=($(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {file}))"')
        else:
            lines.append(f"command=({shlex.join([*job.program, *job.commands[0]])})")
        worker = ""
        if cluster.num_workers > 1:
            lines.append(_ADDRESSES.format(count=cluster.workers_per_node).rstrip())
            worker = _WORKER
        run = " ".join(filter(None, ("srun", *_step_options(job), worker)))
        lines += ["code=0", f'{run} "${{command[@]}}" || code=$?']
        stop = shlex.quote(str(folder / STOP))
        return "\n".join(lines) + "\n" + _REQUEUE.format(stop=stop, limit=cluster.max_requeues)

    def planned_id(self, job: Job) -> str:
        return ""

    def submit(self, job: Job) -> str:
        printed = call("sbatch", "--parsable", str(job.folder / self.file))
        return printed.strip().partition(";")[0]  # the name of the cluster may follow

    def state(self, record: Record) -> str:
        try:
            listed = call("squeue", "--noheader", "--array", f"--jobs={record.id}", "--format=%T")
        except SchedulerError as error:
            if "Invalid job id" in str(error):  # forgotten some minutes after its end
                return ENDED
            raise
        counts = Counter(listed.split())
        if sum(counts.values()) == 1:
            return next(iter(counts))
        return ", ".join(f"{count} {state}" for state, count in counts.items()) or ENDED

    def logs(self, record: Record) -> str:
        folder = record.path / FOLDER
        paths = [
            *folder.glob(_LOGS.format(record.id)),
            *folder.glob(_LOGS.format(f"{record.id}_*")),
        ]
        if not paths:
            raise ParamError(f"{folder} has no log of job {record.id}: it has not started")
        texts: list[str] = []
        for path in sorted(paths, key=_order):
            texts += [f"==> {path.name} <==\n"] if len(paths) > 1 else []
            texts.append(path.read_text(errors="replace"))
        return "".join(texts)

    def stop(self, record: Record) -> None:
        stop = record.path / FOLDER / STOP
        with explain_write_errors(stop):
            stop.touch()
        for which in (("--state=PENDING",), ("--state=RUNNING", "--signal=TERM")):
            with contextlib.suppress(SchedulerError):  # the job has ended
                call("scancel", *which, record.id)


def _options(job: Job) -> Iterator[str]:
    """Yields the options of sbatch. Of an option that is given twice, sbatch takes the last."""
    cluster, log = job.cluster, "%A_%a" if job.is_sweep else "%j"
    folder = str(job.folder).replace("%", "%%")
    options = {
        "job-name": job.run.path.name,
        "output": f"{folder}/{_LOGS.format(log)}",
        "open-mode": "append",
        "nodes": cluster.nodes,
        "ntasks-per-node": cluster.workers_per_node,
        "distribution": "block",
        "cpus-per-task": cluster.cpus,
        "gpus-per-node": cluster.devices or None,
        "mem": f"{cluster.memory_gib}G" if cluster.memory_gib else None,
        "time": cluster.time,
        "signal": f"TERM@{cluster.save_seconds}" if cluster.time else None,
        "account": cluster.account,
        "partition": cluster.queue,
        "requeue": True,
    }
    if job.is_sweep:
        limit = f"%{job.num_parallel}" if job.num_parallel else ""
        options["array"] = f"0-{len(job.commands) - 1}{limit}"
    for name, value in (options | dict(cluster.slurm)).items():
        if value is True:
            yield name
        elif value is not None and value is not False:
            yield f"{name}={shlex.quote(str(value))}"


def _step_options(job: Job) -> Iterator[str]:
    """Yields the options of srun, which does not take all of those that sbatch has."""
    cluster = job.cluster
    yield "--kill-on-bad-exit=0"  # the other workers need time to save
    if cluster.cpus:
        yield f"--cpus-per-task={cluster.cpus}"
    if cluster.image:
        yield f"--container-image={shlex.quote(cluster.image)}"
        yield f"--container-mounts={shlex.quote(f'{cluster.shared}:{cluster.shared}')}"


def _order(path: Path) -> tuple[int, str]:
    """Sorts the logs of an array by the trials' numbers."""
    return len(path.name), path.name
