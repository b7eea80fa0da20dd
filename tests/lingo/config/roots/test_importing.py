"""Claims about importing from the places that experiments and classes come from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lingo.config.roots import importing

INSTALL = "from lingo.config.roots import importing, roots; importing.install(roots.find())"


def run(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    root = str(Path(importing.__file__).parents[3])
    code = f"import sys; sys.path[:0] = ['', {root!r}]; {code}"
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)


def test_modules_called_tasks_elsewhere_do_not_hide_ours(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("raise RuntimeError")
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "__init__.py").write_text("raise RuntimeError")
    done = run(f"{INSTALL}; import tasks, params; print(*tasks.__path__)", tmp_path)
    assert done.stderr == ""
    assert str(tmp_path) not in done.stdout


def test_a_module_called_tasks_that_was_imported_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("")
    done = run(f"import tasks; {INSTALL}", tmp_path)
    assert (
        "tasks.py has been imported as 'tasks', a name that lingo needs; rename it" in done.stderr
    )


def test_the_working_directory_extends_params(tmp_path: Path) -> None:
    (tmp_path / "params" / "my").mkdir(parents=True)
    (tmp_path / "params" / "my" / "own.py").write_text("x = 1")
    code = f"{INSTALL}; from params.my import own; print(own.x)"
    assert run(code, tmp_path).stdout == "1\n"
    code = code.replace("roots.find()", "roots.find().trusted()").replace("['', ", "[")
    assert "ModuleNotFoundError" in run(code, tmp_path).stderr


@pytest.mark.parametrize("own", ["params/lm/__init__.py", "params/lm.py", "params/lm/source.py"])
def test_the_working_directory_hides_no_experiment(own: str, tmp_path: Path) -> None:
    (tmp_path / own).parent.mkdir(parents=True)
    (tmp_path / own).write_text("raise RuntimeError")
    done = run(f"{INSTALL}; from params.lm import source; print(source.tiny.__name__)", tmp_path)
    assert (done.stdout, done.stderr) == ("tiny\n", "")


def test_a_folder_of_two_directories_is_one_package(tmp_path: Path) -> None:
    (tmp_path / "params" / "lm").mkdir(parents=True)
    (tmp_path / "params" / "lm" / "own.py").write_text("from params.lm import source; x = 1")
    assert run(f"{INSTALL}; from params.lm import own; print(own.x)", tmp_path).stdout == "1\n"


def test_a_package_of_an_own_directory_is_run_as_one(tmp_path: Path) -> None:
    (tmp_path / "params" / "my").mkdir(parents=True)
    (tmp_path / "params" / "my" / "__init__.py").write_text("x = 1")
    (tmp_path / "params" / "my" / "own.py").write_text("from params.my import x")
    assert run(f"{INSTALL}; from params.my import own; print(own.x)", tmp_path).stdout == "1\n"


def test_the_working_directory_is_left_when_only_trusted_places_are_asked_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "params" / "lm").mkdir(parents=True)
    (tmp_path / "params" / "lm" / "own.py").write_text("")
    left = "importing.install(roots.find().trusted())"
    code = f"{INSTALL}; import params.lm; {left}; import params.lm.own"
    assert "No module named 'params.lm.own'" in run(code, tmp_path).stderr


def test_a_working_directory_that_is_gone_has_no_experiments(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = run(f"import os; os.rmdir({str(gone)!r}); {INSTALL}; print(1)", gone)
    assert done.stdout == "1\n"
