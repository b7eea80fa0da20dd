"""The documents are true: their files are written and their commands run, in order."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lingo.config.classes import Classes
from tests import fork_server
from tests.fork_server import serving
from tests.lingo.runtimes.child import QUICK_TO_COMPILE

ROOT = pathlib.Path(__file__).parent.parent
BIN = pathlib.Path(sys.executable).parent
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *PAGES]
TEXTS = {name: (ROOT / name).read_text() for name in DOCUMENTS}
NEXT = "\n## Resume"  # the first section of README.md after what a new reader runs
TEXTS["README.md"], _, TEXTS["README.md, later sections"] = TEXTS["README.md"].partition(NEXT)
LONGEST_FIRST = sorted(TEXTS, key=lambda name: -TEXTS[name].count("lingo train"))
STAND_INS = ROOT / "tests/stand_ins"  # of services that are not installed
ELSEWHERE = ("make ", ". .venv", "pip install", ".ci/run", ".venv/bin/tensorboard")
"""Beginnings of commands that run these tests, install something, or never end."""
MAX_SECONDS = 1200  # of the commands of a block, on a busy machine


def commands(script: str) -> str:
    kept = [line for line in script.splitlines() if not line.startswith(ELSEWHERE)]
    return "\n".join(kept)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which this environment's `lingo` and stand-ins are found."""
    folder = tmp_path_factory.mktemp("stand_ins")
    for module in STAND_INS.glob("*.py"):
        if importlib.util.find_spec(module.stem) is None:
            shutil.copy(module, folder)
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    known = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return known | {"PATH": path, "PYTHONPATH": paths}


@pytest.fixture(scope="session")
def forks(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The same, but `lingo` and `python` are forks of one process that has imported TensorFlow.

    Tests of the command line start processes, as readers do.
    """
    programs = tmp_path_factory.mktemp("programs")
    with serving(environment | QUICK_TO_COMPILE) as address:
        for name in ("lingo", "python"):
            run = [sys.executable, "-IS", fork_server.__file__, "run", address, BIN / name]
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, run))} "$@"\n')
            program.chmod(0o755)
        yield environment | {"PATH": f"{programs}{os.pathsep}{environment['PATH']}"}


@pytest.mark.parametrize("text", LONGEST_FIRST)
def test_every_command_works(text: str, tmp_path: pathlib.Path, forks: dict[str, str]) -> None:
    for language, name, content in BLOCK.findall(TEXTS[text]):
        if name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        elif language == "sh":
            done = subprocess.run(
                ["bash", "-euxc", commands(content)],
                cwd=tmp_path,
                env=forks,
                capture_output=True,
                text=True,
                timeout=MAX_SECONDS,
            )
            assert done.returncode == 0, f"{content}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            assert "lacks reports" not in done.stderr, done.stderr  # the warning about a sink


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_is_named_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    here = re.findall(r"`((?:lingo|tasks|params|tools|tests|docs)/[\w/.]+)`", text)
    links = [name for name in re.findall(r"\]\(([^)#]+)", text) if "://" not in name]
    for path in [ROOT / name for name in here] + [(ROOT / document).parent / n for n in links]:
        assert path.exists(), path


def test_the_classes_that_the_table_of_words_names_exist() -> None:
    rows = (ROOT / "docs/coming_from.md").read_text().partition("## Commands")[0].splitlines()
    words = [row.split("|")[-2] for row in rows if row.startswith("|")]
    code = " ".join(re.findall(r"`.*?`", str(words)))
    names = set(re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)*\b", code)) - {"Params", "True"}
    assert len(names) > 20
    assert names <= set(Classes().names())
