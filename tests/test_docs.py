"""The documents are true: their files are written and their commands run, in order."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ELSEWHERE = ("make ", "pip install", ".ci/run")  # what runs these tests, or the test of the wheel


def commands(script: str) -> str:
    kept = [line for line in script.splitlines() if not line.startswith(ELSEWHERE)]
    return "\n".join(kept)


@pytest.mark.docs
@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_command_works(document: str, tmp_path: pathlib.Path) -> None:
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for language, name, content in BLOCK.findall((ROOT / document).read_text()):
        if name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        elif language == "sh":
            done = subprocess.run(
                ["bash", "-euxc", commands(content)],
                cwd=tmp_path,
                env=os.environ | {"PATH": path},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{content}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    for name in re.findall(r"`((?:lingo|tasks|params|tools|tests)/[\w/.]+)`", text):
        assert (ROOT / name).exists(), name
