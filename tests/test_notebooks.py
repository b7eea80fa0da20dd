"""The notebooks are true: all of their cells run, and other processes read what they trained."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import nbclient
import nbformat
import pytest

ROOT = pathlib.Path(__file__).parent.parent
NOTEBOOKS = ROOT / "docs/notebooks"
LINGO = pathlib.Path(sys.executable).parent / "lingo"


@pytest.fixture
def home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Makes kernels and commands use a home of their own."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def execute(name: str, folder: pathlib.Path) -> nbformat.NotebookNode:
    """Executes a notebook in a folder; an error in a cell is an exception."""
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    return client.execute()


def printed(notebook: nbformat.NotebookNode) -> str:
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    return "".join(output.get("text", "") for output in outputs if output.output_type == "stream")


def lingo(*arguments: str, cwd: pathlib.Path) -> str:
    done = subprocess.run([LINGO, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_run_trains_and_continues_a_text(home: pathlib.Path) -> None:
    text = printed(execute("first_run.ipynb", home))
    assert "lm.source.tiny" in text
    assert (home / "runs/first/STATUS").read_text() == "done at step 20\n"


def test_classes_of_cells_train_and_another_process_reads_them(home: pathlib.Path) -> None:
    text = printed(execute("own_layer.ipynb", home))
    rows = [json.loads(r) for r in (home / "runs/rings/metrics.jsonl").read_text().splitlines()]
    accuracies = [row["eval/heldout/accuracy"] for row in rows if "eval/heldout/accuracy" in row]
    assert "Definitions of a notebook" in text
    assert (home / "runs/rings/STATUS").read_text() == "done at step 100\n"
    assert accuracies == [] or accuracies[-1] > 0.7
    source = home / "runs/rings/source/notebook.py"
    assert "class Residual(Layer):" in source.read_text()
    assert "lingo.train(" not in source.read_text()
    assert "notebook.py:Residual" in lingo("show", "--run=runs/rings", cwd=home)
    # trained further without the notebook, and without the file that it wrote
    for file in (home / "XDG_CACHE_HOME").glob("lingo/notebooks/*/notebook.py"):
        file.unlink()
    trust = f"--trust={source}"
    lingo("train", "--run=runs/rings", trust, "--set=max_steps=110", cwd=home)
    assert (home / "runs/rings/STATUS").read_text() == "done at step 110\n"


def test_notebooks_are_kept_without_results() -> None:
    for file in NOTEBOOKS.glob("*.ipynb"):
        cells = [c for c in json.loads(file.read_text())["cells"] if c["cell_type"] == "code"]
        assert len(cells) > 5
        assert {(c["execution_count"], len(c["outputs"])) for c in cells} == {(None, 0)}
