"""Claims about importing from the places that experiments and classes come from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lingo.config import importing

ROOT = Path(importing.__file__).parents[2]
INSTALL = (
    "from lingo.config import importing; from lingo.config.roots import roots;"
    " importing.install(roots.find())"
)


def run(
    code: str, cwd: Path, files: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs code in a directory, which holds these files."""
    for name, content in (files or {}).items():
        (cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (cwd / name).write_text(content)
    code = f"import sys; sys.path[:0] = ['', {str(ROOT)!r}]; {code}"
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)


def test_modules_called_tasks_elsewhere_do_not_hide_ours(tmp_path: Path) -> None:
    files = dict.fromkeys(("tasks.py", "params/__init__.py"), "raise RuntimeError")
    done = run(f"{INSTALL}; import tasks, params; print(*tasks.__path__)", tmp_path, files)
    assert done.stderr == ""
    assert str(tmp_path) not in done.stdout


def test_a_module_called_tasks_that_was_imported_is_an_error(tmp_path: Path) -> None:
    done = run(f"import tasks; {INSTALL}", tmp_path, {"tasks.py": ""})
    assert (
        f"{tmp_path / 'tasks.py'} has been imported as 'tasks', a name that lingo needs"
        f" for {ROOT / 'tasks'}; rename it" in done.stderr
    )


@pytest.mark.parametrize(
    ("package", "files"),
    [
        ("params.my", {"params/my/own.py": "x = 1"}),
        (
            "params.my",
            {"params/my/__init__.py": "x = 1", "params/my/own.py": "from params.my import x"},
        ),
        ("params.lm", {"params/lm/own.py": "from params.lm import source; x = 1"}),
    ],
    ids=["folder", "package", "folder of two directories"],
)
def test_the_working_directory_extends_params(package, files, tmp_path):
    code = f"{INSTALL}; from {package} import own; print(own.x)"
    assert run(code, tmp_path, files).stdout == "1\n"
    code = code.replace("roots.find()", "roots.find().trusted_roots()").replace("['', ", "[")
    assert "cannot import name" in (error := run(code, tmp_path).stderr) or "No module" in error


@pytest.mark.parametrize("own", ["params/lm/__init__.py", "params/lm.py", "params/lm/source.py"])
def test_the_working_directory_hides_no_experiment(own: str, tmp_path: Path) -> None:
    code = f"{INSTALL}; from params.lm import source; print(source.tiny.__name__)"
    done = run(code, tmp_path, {own: "raise RuntimeError"})
    assert (done.stdout, done.stderr) == ("tiny\n", "")


def test_the_working_directory_is_left_when_only_trusted_places_are_asked_for(tmp_path):
    left = "importing.install(roots.find().trusted_roots())"
    code = f"{INSTALL}; import params.lm; {left}; import params.lm.own"
    assert "No module named 'params.lm.own'" in run(code, tmp_path, {"params/lm/own.py": ""}).stderr


def test_a_working_directory_that_is_gone_has_no_experiments(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = run(f"import os; os.rmdir({str(gone)!r}); {INSTALL}; print(1)", gone)
    assert done.stdout == "1\n"


@pytest.mark.parametrize("own", ["tasks/lm/model.py", "tasks/lm.py", "tasks/lm/__init__.py"])
def test_after_import_lingo_no_folder_on_the_path_runs_in_the_place_of_ours(own, tmp_path):
    code = "import lingo; from tasks import mine; from tasks.lm.model import LanguageModel as m"
    files = {own: "raise RuntimeError", "tasks/mine.py": "x = 1"}
    done = run(f"{code}; print(mine.x, m.__name__)", tmp_path, files)
    assert (done.stdout, done.stderr) == ("1 LanguageModel\n", "")


def test_folders_on_the_path_stay_importable_when_experiments_are_asked_for(tmp_path: Path) -> None:
    folders = ("tasks", "params", "params/lm")
    files = {f"here/{folder}/mine.py": "x = 1" for folder in folders}
    code = f"sys.path.append({str(tmp_path / 'here')!r}); {INSTALL}"
    code += "; from tasks import mine; from params import mine; from params.lm import mine"
    assert run(f"{code}; print(mine.x)", tmp_path, files).stdout == "1\n"


@pytest.mark.parametrize(
    "statement",
    [
        "from tasks.lm.model import LanguageModel",
        "from tasks.lm import model",
        "import tasks.lm.task",
        "from tasks.tokens import Tokens",
        "import tasks; from tasks.lm.model import LanguageModel",
    ],
)
@pytest.mark.parametrize("own", ["tasks.py", "tasks/__init__.py"])
def test_a_file_that_hides_our_tasks_is_named(own: str, statement: str, tmp_path: Path) -> None:
    error = run(f"import lingo; {statement}", tmp_path, {own: ""}).stderr
    sentence = f"ImportError: {tmp_path / own} hides lingo's {ROOT / 'tasks'}: rename it"
    assert error.splitlines()[-1].startswith(sentence)


def test_a_package_that_hides_our_tasks_works_as_ever(tmp_path: Path) -> None:
    files = {"tasks/__init__.py": "x = 1", "tasks/lm/model.py": "x = 2"}
    code = "import lingo, inspect, tasks, tasks.lm.model; inspect.getmodule(lingo.get)"
    assert run(f"{code}; print(tasks.x, tasks.lm.model.x)", tmp_path, files).stdout == "1 2\n"


def test_experiments_are_read_beside_a_package_that_hides_our_tasks(tmp_path: Path) -> None:
    code = "import lingo; print(lingo.get('lm.source.tiny').max_steps > 0)"
    done = run(code, tmp_path, {"tasks/__init__.py": "raise RuntimeError"})
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("own", ["tasks/lm/model.py", "tasks/lm/__init__.py"])
def test_a_module_imported_in_the_place_of_ours_is_refused_by_both_files(own, tmp_path):
    name = own.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    code = f"sys.path.remove({str(ROOT)!r}); import {name}; sys.path.append({str(ROOT)!r})"
    error = run(f"{code}; import lingo; lingo.get('lm.source.tiny')", tmp_path, {own: ""}).stderr
    ours = ROOT / name.replace(".", "/")
    ours = ours.with_suffix(".py") if ours.with_suffix(".py").exists() else ours
    assert f"ParamError: {tmp_path / own} has been imported as {name!r}" in error
    assert f"a name that lingo needs for {ours}; rename it" in error
