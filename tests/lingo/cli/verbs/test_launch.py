"""`lingo launch`: what it refuses, and the command that its workers run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lingo.cli import workers
from lingo.cli.main import main
from lingo.cli.workers import Ending
from lingo.storage.bucket import cache
from tests.stand_ins.buckets import memory_bucket


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[str], int]]:
    """The programs that would have been started, and in how many processes."""
    found: list[tuple[Sequence[str], int]] = []

    def run(program: Sequence[str], cluster: Sequence[str], **_: Any) -> list[Ending]:
        found.append((program, len(cluster)))
        return [Ending(1, 7), Ending(0, 1)] if "--exp=bad" in program else [Ending(0, 0)]

    monkeypatch.setattr(workers, "run", run)
    return found


def test_every_worker_runs_what_stands_after_the_dashes(started):
    inner = ["train", "--exp=tiny(model_dim=8)", "--logdir=a b", "--set=max_steps=1"]
    assert main(["launch", "--workers=3", "--", *inner]) == 0
    assert started == [((sys.executable, "-P", "-m", "lingo.cli.main", *inner), 3)]


def test_the_code_is_that_of_the_worker_that_failed(started, capsys):
    assert main(["launch", "--workers=2", "--", "train", "--exp=bad", "--logdir=x"]) == 7
    assert capsys.readouterr().err.startswith("lingo launch: worker 1 (127.0.0.1:")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "launch needs a command after --: lingo launch [list|logs|stop] [--flags] --"),
        (["--", "train"], "no number of workers given: --workers=N."),
        (["--workers=0", "--", "train"], "0 is not an integer in the range [1, 1024]"),
        (["--workers=2", "--", "list"], "'list' is not a verb for several processes"),
        (["--workers=2", "--", "trian"], "Did you mean 'train'?"),
        (["--workers=2", "--", "launch", "--", "train"], "'launch' is not a verb for several"),
        (["--workers=2", "--", "train", "--epx=tiny"], "there is no flag --epx"),
        (["train", "--workers=2", "--", "train"], "'train' is one word too many"),
        (["train", "--exp=tiny"], "there is no flag --exp"),
        (["trian"], "'trian' is not list, logs or stop; a command stands after --:"),
        (["--dry_run", "--", "train"], "are for --on=slurm and --on=kubernetes"),
        (["--run=x", "--", "train"], "--run is for list, logs and stop"),
        (["--on=slurm", "--", "train"], "--on=slurm needs a cluster file: --cluster=cluster.toml"),
        (["--on=slurm", "--workers=2", "--", "train"], "takes its workers from the cluster file"),
        (["--on=slurm", "--cluster=gone", "--", "train"], "--cluster=gone cannot be read: No such"),
        (["logs"], "no run given: lingo launch logs --run=DIR"),
        (["stop", "--run=gone"], "gone was not launched on a cluster"),
        (["list", "--run=gone"], "gone is not a directory"),
        (["list", "--on=slurm"], "list takes --run only: leave out --on"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(arguments, said, started, capsys):
    assert main(["launch", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert started == []


def test_help_shows_how_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: lingo launch [list|logs|stop] [--flags] -- VERB [--flags]\n")
    assert "--workers=WORKERS" in shown


# ---- jobs of a cluster ---------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path, toys: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flags that launch on a Slurm of stand-ins, from a directory with an own experiment."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in (("sbatch", "echo 7"), ("squeue", "cat state"), ("scancel", "true")):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> calls\n{script}\n')
        (folder / name).chmod(0o755)
    (tmp_path / "mine.py").write_text((toys / "toys.py").read_text())
    (tmp_path / "cluster.toml").write_text('time = "01:00:00"')
    (tmp_path / "state").write_text("PENDING")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return ["--on=slurm", "--cluster=cluster.toml"]


TRAIN = ["train", "--exp=mine.py:narrow", "--logdir=runs/a"]


def test_a_dry_run_prints_the_script_and_writes_nothing(lingo, cluster, tmp_path):
    before = sorted(path.name for path in tmp_path.iterdir())
    shown = lingo("launch", *cluster, "--dry_run", "--", *TRAIN)
    assert shown.out.startswith("#!/usr/bin/env bash\n#SBATCH --job-name=a\n"), shown.err
    assert f"train --exp={tmp_path}/runs/a/launch/source/mine.py:narrow" in shown.out
    assert f"--logdir={tmp_path}/runs/a)" in shown.out
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_job_has_a_snapshot_is_listed_and_stopped(lingo, cluster, tmp_path):
    shown = lingo("launch", *cluster, "--", *TRAIN)
    assert shown.out == (f"slurm: job 7, logs by: lingo launch logs --run={tmp_path}/runs/a\n"), (
        shown.err
    )
    job = tmp_path / "runs/a/launch"
    assert (job / "source/mine.py").read_text() == (tmp_path / "mine.py").read_text()
    assert (job / "cluster.toml").read_text() == 'time = "01:00:00"'
    assert "task.stack.num_layers = 2" in (job / "experiment.txt").read_text()
    assert json.loads((job / "experiment.json").read_text())["experiment"]["function"] == "narrow"
    again = lingo("launch", *cluster, "--", *TRAIN)
    assert again.code == 2
    assert "runs/a has job 7 already, which is PENDING: wait for its end, or" in again.err
    head, row = lingo("launch", "list").out.splitlines()
    assert head.split() == ["run", "on", "job", "state", "status", "submitted"]
    assert row.split()[:4] == ["runs/a", "slurm", "7", "PENDING"]
    assert (
        "runs/a/launch has no log of job 7: it has not"
        in lingo("launch", "logs", "--run=runs/a").err
    )
    assert lingo("launch", "stop", "--run=runs/a").code == 0
    (tmp_path / "state").write_text("")
    assert lingo("launch", *cluster, "--", *TRAIN).code == 0
    assert not (job / "stop").exists()


def test_a_sweep_is_an_array_of_its_trials(lingo, cluster, tmp_path):
    sweep = ["sweep", "--exp=mine.py:narrow", "--logdir=runs/s", "--sweep=exp.num_layers=1,2,3"]
    shown = lingo("launch", *cluster, "--", *sweep, "--workers=2", "--set=max_steps=1")
    assert shown.code == 0, shown.err
    job = tmp_path / "runs/s/launch"
    assert "#SBATCH --array=0-2%2\n" in (job / "job.sbatch").read_text()
    lines = (job / "commands.txt").read_text().splitlines()
    assert [line.split()[-1] for line in lines] == [f"--set=exp.num_layers={n}" for n in (1, 2, 3)]
    assert f"--logdir={tmp_path}/runs/s/000-num_layers-1" in lines[0]


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (
            ["eval", "--run=x"],
            "'eval' is not a verb for a job of a cluster: these are train, sweep",
        ),
        (["train", "--exp=mine.py:narrow"], "a job trains in a directory: --logdir=DIR"),
        ([*TRAIN, "--dry_run"], "a job trains in a directory: --logdir=DIR, without --dry_run"),
        ([*TRAIN, "--set=max_stepz=1"], "max_stepz"),
        ([*TRAIN[:2], "--logdir=s3://bucket/a"], "Slurm writes logs into the run's directory"),
        (["sweep", *TRAIN[1:], "--sweep=exp.num_layers=1,2", "--prune=median"], "leave it out"),
        (["sweep", *TRAIN[1:], "--sweep=exp.num_layers=1,2", "--print"], "leave out --print"),
    ],
)
def test_a_job_that_would_fail_is_refused(lingo, cluster, tmp_path, inner, said):
    shown = lingo("launch", *cluster, "--", *inner)
    assert shown.code == 2
    assert said in shown.err
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "calls").exists()


def test_without_sbatch_nothing_is_written(lingo, cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = lingo("launch", *cluster, "--", *TRAIN)
    assert shown.code == 2
    assert "there is no sbatch on this machine: launch where it is installed" in shown.err
    assert not (tmp_path / "runs").exists()


def test_jobs_are_listed_without_tensorflow(cluster, tmp_path):
    code = (
        "import sys; from lingo.cli.main import main; main(['launch', 'list', '--run=.']);"
        "print('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout == "no jobs below .\nFalse\n"


def test_a_job_of_a_bucket_has_its_snapshot_there(lingo, cluster, tmp_path, monkeypatch):
    """The machine that launches may lose its copy of the run: the bucket has the record."""
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    (tmp_path / "bin/kubectl").write_text('#!/bin/sh\necho "kubectl $*" >> calls\n')
    (tmp_path / "bin/kubectl").chmod(0o755)
    (tmp_path / "cluster.toml").write_text('image = "i:1"')
    address = f"memory://{memory_bucket()}/runs/a"
    flags = ("--on=kubernetes", "--cluster=cluster.toml")
    shown = lingo("launch", *flags, "--", *TRAIN[:2], f"--logdir={address}")
    assert shown.code == 0, shown.err
    shutil.rmtree(tmp_path / "cache")
    rows = lingo("launch", "list", f"--run={address.rpartition('/')[0]}").out.splitlines()
    assert rows[1].split()[1] == "kubernetes"
    assert rows[1].split()[3] == "Active"
    job = cache.local_copy(address) / "launch"
    assert (job / "source/mine.py").exists()
    pods = json.loads((job / "jobset.json").read_text())["spec"]["replicatedJobs"][0]["template"]
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["lingo", "train", "--exp=mine.py:narrow", f"--logdir={address}"]
