"""The script for Slurm, run by bash with stand-ins for Slurm's programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lingo.config.params import ParamError
from lingo.config.source_files import SourceFile
from lingo.launch.job import ENDED, Job, Record, SchedulerError, find_records, submit, use_copies
from lingo.launch.slurm import Slurm
from lingo.processes.processes import cluster

WORKER = "import os; print(os.environ.get('TF_CONFIG'), flush=True)"
SRUN = """
while [[ $1 == --* ]]; do shift; done
for ((rank = 0; rank < ${TASKS:-1}; rank++)); do SLURM_PROCID=$rank "$@"; done
exit "${CODE:-0}"
"""


@pytest.fixture
def run_script(program: Callable[..., Path]) -> Callable[..., tuple[int, str, list[str]]]:
    """Runs a job's script; returns its exit code, output, and the calls of Slurm's programs."""

    def run(job: Job, **variables: str) -> tuple[int, str, list[str]]:
        calls = program("srun", SRUN)
        program("squeue", 'echo "$STATE"')
        program("scontrol", '[ "$1" = show ] && printf "%s\\n" $SLURM_JOB_NODELIST; true')
        environment = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "a b", "STATE": "RUNNING"}
        done = subprocess.run(
            ["bash", "-c", Slurm().text(job)],
            capture_output=True,
            text=True,
            env=os.environ | environment | variables,
        )
        return done.returncode, done.stdout + done.stderr, calls.read_text().splitlines()

    return run


def test_workers_find_each_other_on_all_nodes(job_for, run_script):
    job = job_for('nodes = 2\nworkers_per_node = 2\nshared = "/"', ("-c", WORKER))
    job = job._replace(program=(sys.executable,))
    code, out, _ = run_script(job, TASKS="4")
    found = [cluster({"TF_CONFIG": line}) for line in out.splitlines()]
    assert code == 0
    assert [one.index for one in found] == [0, 1, 2, 3]
    assert {one.workers for one in found} == {("a:10024", "a:10025", "b:10024", "b:10025")}


def test_a_worker_that_is_alone_has_no_others(job_for, run_script):
    job = job_for("", ("-c", WORKER))._replace(program=(sys.executable,))
    assert run_script(job)[:2] == (0, "None\n")


@pytest.mark.parametrize(
    ("code", "variables", "requeued"),
    [
        (0, {}, ""),
        (143, {}, "12"),  # SIGTERM, before the time limit
        (137, {}, "12"),
        (1, {}, "12"),
        (6, {}, "12"),  # the lease of a process that was killed ends in time
        (10, {}, "12"),
        *((mistake, {}, "") for mistake in (2, 3, 4, 5, 7, 8, 130)),
        (143, {"SLURM_RESTART_COUNT": "2"}, "12"),
        (143, {"SLURM_RESTART_COUNT": "3"}, ""),
        (143, {"STATE": ""}, ""),  # cancelled meanwhile
        (143, {"STATE": "COMPLETING"}, ""),
        (143, {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "4"}, "9_4"),
    ],
)
def test_a_job_is_requeued_if_another_start_may_help(
    job_for, run_script, code, variables, requeued
):
    job = job_for("max_requeues = 3", ("x",), program=("true",))
    ended, out, calls = run_script(job, CODE=str(code), **variables)
    assert ended == code
    assert [c for c in calls if " requeue " in c] == [f"scontrol requeue {requeued}"] * bool(
        requeued
    )
    assert ("was requeued 3 times: not requeued again" in out) == (
        variables.get("SLURM_RESTART_COUNT") == "3"
    )


def test_a_job_that_is_stopped_is_not_requeued(job_for, run_script):
    job = job_for("", ("x",), program=("true",))
    job.folder.mkdir(parents=True)
    (job.folder / "stop").touch()
    assert not any(" requeue " in call for call in run_script(job, CODE="143")[2])


def test_a_trial_of_an_array_runs_its_line(job_for, run_script, tmp_path):
    commands = (("-c", "print('first')"), ("-c", "print('it\\'s $HOME')"))
    job = job_for("", *commands, is_sweep=True, num_parallel=1, program=(sys.executable,))
    lines = [f"{sys.executable} -c 'print(1)'", f"""{sys.executable} -c 'print("$HOME")'"""]
    job.folder.mkdir(parents=True)
    (job.folder / "commands.txt").write_text("".join(f"{line}\n" for line in lines))
    assert "#SBATCH --array=0-1%1\n" in Slurm().text(job)
    assert run_script(job, SLURM_ARRAY_TASK_ID="1")[1] == "$HOME\n"


def test_the_keys_become_options(job_for):
    text = Slurm().text(
        job_for(
            'nodes = 2\ndevices = 8\ncpus = 96\nmemory_gib = 500\ntime = "24:00:00"\n'
            'account = "us"\nqueue = "big"\nimage = "i:1"\nshared = "/"\nenvironment.A = "b c"\n'
            'slurm = {exclusive = true, constraint = "h200&nvl", requeue = false}'
        )
    )
    lines = set(text.splitlines())
    wanted = ("nodes=2", "gpus-per-node=8", "cpus-per-task=96", "mem=500G", "time=24:00:00")
    wanted += ("account=us", "partition=big", "exclusive", "constraint='h200&nvl'")
    wanted += ("signal=TERM@300", "open-mode=append", "ntasks-per-node=1")
    assert {f"#SBATCH --{option}" for option in wanted} <= lines
    assert "#SBATCH --requeue" not in lines  # of [slurm], which is the last word
    assert "export A='b c'" in lines
    assert "--cpus-per-task=96 --container-image=i:1 --container-mounts=/:/ bash -c" in text
    assert subprocess.run(["bash", "-n", "-c", text]).returncode == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes = 2", "2 nodes need a directory that all have in common"),
        ('shared = "/elsewhere"', "/run is not below /elsewhere, which all nodes have in common"),
        ("image = 'i:1'", "the cluster file has an image, but no `shared` to mount in it"),
    ],
)
def test_a_job_that_cannot_run_is_refused(job_for, text, said):
    with pytest.raises(ParamError) as error:
        Slurm().check(job_for(text))
    assert said in str(error.value)


def test_the_snapshot_is_written_before_the_job_is_submitted(
    job_for, program, tmp_path, monkeypatch
):
    calls = program("sbatch", 'ls "$(dirname "$2")" > listed; echo "41;cluster"')
    source = {"layers/gate.py": SourceFile(str(tmp_path / "gate.py"), "0", b"x = 1\n")}
    job = job_for("")
    monkeypatch.chdir(tmp_path)
    assert submit(job, Slurm(), {"config.txt": "a"}, source) == "41"
    assert calls.read_text() == f"sbatch --parsable {job.folder / 'job.sbatch'}\n"
    assert (tmp_path / "listed").read_text().split() == ["config.txt", "job.sbatch", "source"]
    assert (job.folder / "source/layers/gate.py").read_text() == "x = 1\n"
    (record,) = find_records(tmp_path)
    assert (record.on, record.id, record.path) == ("slurm", "41", job.run.path)
    assert json.loads((job.folder / "job.json").read_text())["nodes"] == 1


def test_a_refusal_of_the_scheduler_is_told_in_its_words(job_for, program):
    program("sbatch", 'echo "sbatch: error: Batch job submission failed: No account" >&2; exit 1')
    with pytest.raises(SchedulerError, match=r"sbatch failed: .* submission failed: No account"):
        submit(job_for(""), Slurm(), {}, {})


def test_files_are_replaced_by_their_copies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = {"m.py": SourceFile(os.path.realpath("my/m.py"), "0", b"")}
    given = ("train", "--exp=my/m.py:f(n=1)", "--set=Stack=other.py:S", "--logdir=my/m.py")
    assert use_copies(given, source, Path("/job")) == given  # an empty file has no copy
    source = {
        "m.py": SourceFile(os.path.realpath("my/m.py"), "0", b"x"),
        "n.py": SourceFile("/a b/n.py", "0", b"x"),
    }
    assert use_copies(["--exp=/a b/n.py:f"], source, Path("/job")) == ("--exp=/job/source/n.py:f",)
    changed = ("train", "--exp=/job/source/m.py:f(n=1)", *given[2:])
    assert use_copies(given, source, Path("/job")) == changed


@pytest.mark.parametrize(
    ("squeue", "state"),
    [
        ("echo RUNNING", "RUNNING"),
        ("printf 'RUNNING\\nPENDING\\nPENDING\\n'", "1 RUNNING, 2 PENDING"),
        ("true", ENDED),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", ENDED),
    ],
)
def test_a_state_is_in_words_of_slurm(tmp_path, program, squeue, state):
    program("squeue", squeue)
    assert Slurm().state(Record(tmp_path, "slurm", "3", "", "", 1)) == state


def test_a_stop_saves_what_runs_and_cancels_what_waits(job_for, program):
    calls = program("scancel", "exit 1")  # as for a job that has ended
    job = job_for("")
    job.folder.mkdir(parents=True)
    Slurm().stop(Record(job.run.path, "slurm", "3", "", "", 1))
    assert (job.folder / "stop").exists()
    assert calls.read_text().splitlines() == [
        "scancel --state=PENDING 3",
        "scancel --state=RUNNING --signal=TERM 3",
    ]
