"""The wheel: `lingo` alone at the top, every experiment inside, nothing needed from a checkout."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent

MINE = """
from lingo.config.registry import experiment
from params.lm.source import tiny

@experiment
def mine():
    cfg = tiny(model_dim=32, num_layers=1)
    cfg.max_steps = 2
    cfg.eval_inputs = {}
    return cfg
"""


def pip(verb: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", verb, "--no-deps", "--quiet", *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("dist")
    pip("wheel", "-w", str(folder), str(ROOT))
    (found,) = folder.glob("lingo_tf-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns an environment in which the wheel is installed and the checkout is not."""
    target = tmp_path_factory.mktemp("site")
    pip("install", "--target", str(target), str(wheel))
    # packages on PYTHONPATH run no .pth files, so an editable install there does not count
    return os.environ | {"PYTHONPATH": f"{target}{os.pathsep}{sysconfig.get_path('purelib')}"}


def lingo(arguments: list[str], environment: dict[str, str], cwd: pathlib.Path) -> str:
    python = [sys.executable, "-S", "-m", "lingo.cli.main", *arguments]
    done = subprocess.run(python, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_lingo_is_installed_at_the_top(wheel: pathlib.Path) -> None:
    top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"lingo"}


def test_what_few_need_is_an_extra(wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        (name,) = (n for n in content.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = content.read(name).decode()
    required = re.findall(r"^Requires-Dist: ([\w-]+)(?:.*; extra == '(\w+)')?", metadata, re.M)
    extras = {package: extra for package, extra in required}
    assert set(re.findall(r"^Provides-Extra: (\w+)$", metadata, re.M)) >= set(extras.values()) - {
        ""
    }
    assert extras["tensorflow"] == ""
    assert extras["jax"] == "mesh"
    assert extras["optuna"] == "sweep"


def test_an_installed_lingo_lists_and_trains_its_experiments(
    installed: dict[str, str], tmp_path: pathlib.Path
) -> None:
    assert "lm.source.tiny" in lingo(["list"], installed, tmp_path)
    small = ["--set=exp.model_dim=32", "--set=max_steps=2", "--set=eval_inputs={}"]
    lingo(["train", "--exp=lm.source.tiny", "--logdir=run", *small], installed, tmp_path)
    assert (tmp_path / "run/STATUS").read_text() == "done at step 2\n"


def test_an_own_experiment_file_trains_and_resumes_outside_the_checkout(
    installed: dict[str, str], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    lingo(["train", "--exp=mine.py:mine", "--logdir=run"], installed, tmp_path)
    lingo(["train", "--exp=mine.py:mine", "--logdir=run", "--set=max_steps=3"], installed, tmp_path)
    assert (tmp_path / "run/STATUS").read_text() == "done at step 3\n"
