"""Imports point down: a file imports from lower floors or from its own room."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tools.house import folder_of
from tools.source_tree import ROOT, SourceFile, SourceTree, circles, room_of

FLOORS = {
    "config": 0,
    "storage": 1,
    "mesh": 1,
    "ops": 1,
    "metrics": 1,
    "processes": 1,
    "layers": 2,
    "optim": 2,
    "data": 2,
    "decode": 3,
    "learner": 4,
    "checkpoints": 4,
    "models": 4,  # of one field each: nothing else in lingo imports these two
    "datasets": 4,
    "runtimes": 5,
    "contract": 6,
    "inspection": 7,
    "export": 7,
    "trainer": 8,
    "study": 9,
    "launch": 9,
    "serving": 9,
    "cli": 10,
    "__init__": 11,  # the Python API: as thin as a verb
    "tasks": 12,
    "params": 13,
    "tools": 14,
    "tests": 15,
}
pytestmark = pytest.mark.xdist_group("floors")  # the source is read once
OURS = {"lingo", "tasks", "params", "tools", "tests"}


@pytest.fixture(scope="module")
def tree() -> SourceTree:
    return SourceTree()


def test_every_file_lies_in_a_room(tree: SourceTree) -> None:
    assert [file.path for file in tree.files if file.room not in FLOORS] == []


def test_imports_point_down(tree: SourceTree) -> None:
    """Also those inside functions and under TYPE_CHECKING; rooms of one floor stay apart."""
    wrong = []
    for one in tree.imports:
        other = room_of(one.target.module if one.target else one.name)
        is_ours = one.name.split(".")[0] in OURS
        here, there = FLOORS[one.file.room], FLOORS.get(other, 99)
        if is_ours and other != one.file.room and here <= there:
            wrong.append(f"{one}: {other} is not below {one.file.room}")
    assert wrong == []


def test_nothing_else_in_lingo_knows_a_model_or_a_dataset(tree: SourceTree) -> None:
    own = ("lingo.models", "lingo.datasets")
    framework = [one for one in tree.imports if one.file.path.startswith("lingo/")]
    outside = [one for one in framework if one.file.room not in ("models", "datasets")]
    assert [str(one) for one in outside if one.name.startswith(own)] == []


def test_nothing_in_lingo_imports_from_a_package(tree: SourceTree) -> None:
    """What `__init__.py` exports is for others: inside, it would hide what depends on what."""
    inside = [one for one in tree.imports if one.file.path.startswith("lingo/")]
    assert [str(one) for one in inside if one.target and one.target.is_package] == []


def test_no_circle_between_rooms_or_files_of_config(tree: SourceTree) -> None:
    assert circles(tree.edges(lambda file: file.room)) == []
    assert circles(tree.edges(lambda file: file.path if file.room == "config" else "")) == []


def test_no_circle_between_the_folders_of_a_room(tree: SourceTree) -> None:
    assert circles(tree.edges(folder_of)) == []


def exported(file: SourceFile, tree: SourceTree) -> Iterator[str]:
    """Yields the names that a package has beside its modules: its own, and those of others."""
    for node in file.syntax.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.ImportFrom(module=module, names=names):
                here = (alias for alias in names if f"{module}.{alias.name}" not in tree.modules)
                yield from (alias.asname or alias.name for alias in here)
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                yield from ast.literal_eval(value)


def test_no_name_of_a_package_is_that_of_a_module(tree: SourceTree) -> None:
    """An import of the module would put it in the place of the name."""
    wrong = []
    for file in tree.files:
        if file.path.startswith("lingo/") and file.is_package:
            taken = {
                p.stem
                for folder in ("lingo", file.module.replace(".", "/"))
                for p in (ROOT / folder).iterdir()
            }
            wrong += [f"{file.path}: {name}" for name in exported(file, tree) if name in taken]
    assert wrong == []


def test_only_the_command_line_and_tools_read_flags(tree: SourceTree) -> None:
    above = [one for one in tree.imports if one.file.room not in ("cli", "tools")]
    assert [str(one) for one in above if one.name.startswith(("absl.flags", "argparse"))] == []


def imports_tensorflow(code: str) -> bool:
    """Runs some code in a process of its own; returns whether that has imported TensorFlow."""
    code = f"import importlib, sys\n{code}\nprint('tensorflow' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr.endswith("True\n")


def test_declaring_experiments_imports_no_tensorflow(tree: SourceTree) -> None:
    modules = [file.module for file in tree.files if file.room != "tools"]
    assert not imports_tensorflow(f"for name in {modules}: importlib.import_module(name)")
