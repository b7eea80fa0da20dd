"""What an extra brings may be missing: who needs it is told which, all else works."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SMALL = (
    "--exp=tiny(model_dim=16, num_layers=1)",
    "--set=max_steps=1",
    "--set=eval_inputs['heldout'].max_batches=1",
    "--set=eval_inputs['keras'].max_batches=1",
)
MESH = "--set=runtime=Mesh(data=2,model=2)"


@pytest.fixture
def without_jax(tmp_path: pathlib.Path) -> dict[str, str]:
    """Returns an environment in which JAX cannot be imported."""
    folder = tmp_path / "site"
    folder.mkdir()
    blocked = "import sys\nsys.modules.update(jax=None, jaxlib=None)\n"
    (folder / "sitecustomize.py").write_text(blocked)
    return os.environ | {"PYTHONPATH": str(folder)}


def lingo(
    arguments: tuple[str, ...], environment: dict[str, str], cwd: pathlib.Path
) -> subprocess.CompletedProcess[str]:
    program = pathlib.Path(sys.executable).parent / "lingo"
    return subprocess.run(
        [program, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("verb", ["train", "train --devices=4"])
def test_a_mesh_without_jax_is_one_line_with_what_to_install(verb, without_jax, tmp_path):
    done = lingo((*verb.split(), "--logdir=run", *SMALL, MESH), without_jax, tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("lingo train: ")
    assert "pip install 'lingo-tf[mesh]'" in line
    assert not (tmp_path / "run").exists()


def test_all_else_works_without_jax(without_jax: dict[str, str], tmp_path: pathlib.Path) -> None:
    for arguments in (
        ("show", *SMALL, MESH, "--weights"),
        ("show", *SMALL, "--set=runtime=TpuMesh(model=8)"),
        ("check", "--exp=tiny", MESH),
        ("train", "--logdir=run", *SMALL, "--devices=2"),
        ("eval", "--run=run", "--devices=3"),
        ("decode", "--run=run", "--prompt=a", "--max_tokens=2", "--devices=3"),
    ):
        done = lingo(arguments, without_jax, tmp_path)
        assert done.returncode == 0, (arguments, done.stderr)
    assert (tmp_path / "run/STATUS").read_text() == "done at step 1\n"


@pytest.mark.parametrize("file", ["docs/pods.md", "Makefile"])
def test_beside_tensorflow_tpu_all_else_that_lingo_needs_is_named(file: str) -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    others = [package for package in needed if not package.startswith("tensorflow>")]
    assert len(others) == len(needed) - 1
    text = (ROOT / file).read_text()
    assert [package for package in others if f"'{package}'" not in text] == []
