"""A job, and programs of schedulers that write down how they were called."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lingo.launch import cluster_file
from lingo.launch.job import Job
from lingo.trainer.directory.run_directory import RunDirectory


@pytest.fixture
def job_for(tmp_path: Path) -> Callable[..., Job]:
    """Makes a job of a run from the text of a cluster file."""

    def make(text: str = "", *commands: tuple[str, ...], **values: object) -> Job:
        file = tmp_path / "cluster.toml"
        file.write_text(text)
        job = Job(
            RunDirectory(tmp_path / "run"),
            commands or (("train", "--exp=tiny"),),
            cluster_file.read(str(file)),
            ("lingo",),
        )
        return job._replace(**values)

    return make


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Installs a program, given by lines of bash; returns the file with the calls of all."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def install(name: str, script: str) -> Path:
        file = folder / name
        file.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> {folder}/calls\n{script}\n')
        file.chmod(0o755)
        return folder / "calls"

    return install
