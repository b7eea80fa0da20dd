"""`python -m tools.release`: builds the packages of a release and tries each of them alone.

It builds the wheel and the source distribution into dist/, has twine check what an index would
show, and installs each into an empty environment, in which it lists all experiments and trains
`lm.source.tiny` for three steps. It uploads nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from tools.source_tree import ROOT

DIST = ROOT / "dist"
TRAIN = (
    *("train", "--exp=lm.source.tiny(model_dim=32, num_layers=1)", "--logdir=run"),
    *("--set=max_steps=3", "--set=eval_inputs={}"),
)


def main() -> int:
    """Builds, checks and tries the packages; returns the exit code."""
    for old in DIST.glob("lingo_tf-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as place:
        builder = _make_environment(Path(place) / "builder")
        _run(builder, "pip", "install", "--quiet", "build", "twine")
        _run(builder, "build", "--outdir", str(DIST), str(ROOT))
        packages = sorted(DIST.glob("lingo_tf-*"))
        _run(builder, "twine", "check", "--strict", *map(str, packages))
        for package in packages:
            _try_package(package, Path(place) / package.name)
    print(f"built and tried: {', '.join(package.name for package in packages)}")
    return 0


def _try_package(package: Path, folder: Path) -> None:
    """Installs a package into an empty environment, lists its experiments and trains one."""
    if package.suffix == ".whl":
        _check_description(package)
    python = _make_environment(folder)
    _run(python, "pip", "install", "--quiet", str(package))
    _run(python, "lingo.cli.main", "list", cwd=folder)
    _run(python, "lingo.cli.main", *TRAIN, cwd=folder)
    status = (folder / "run" / "STATUS").read_text()
    if status != "done at step 3\n":
        raise SystemExit(f"{package.name}: the run of three steps ended with {status!r}")
    _run(python, "pip", "show", "lingo-tf")


def _check_description(wheel: Path) -> None:
    """Refuses a description with pictures or links that only the repository has."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        text = content.read(name).decode()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    if links:
        raise SystemExit(f"{wheel.name}: these links lead nowhere on an index: {', '.join(links)}")


def _make_environment(folder: Path) -> Path:
    """Makes an empty environment; returns its Python."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def _run(python: Path, module: str, *arguments: str, cwd: Path | None = None) -> None:
    """Runs a module; the checkout and the user's own packages are not on its path."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    subprocess.run(
        [python, "-m", module, *arguments],
        check=True,
        cwd=cwd or python.parent,
        env=variables | {"PYTHONNOUSERSITE": "1"},
    )


if __name__ == "__main__":
    sys.exit(main())
