"""Imports point down: a file imports from lower floors or from its own folder."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FLOORS = {
    "lingo.config": 0,
    "lingo.storage": 1,
    "lingo.mesh": 1,
    "lingo.ops": 1,
    "lingo.metrics": 1,
    "lingo.processes": 1,
    "lingo.layers": 2,
    "lingo.optim": 2,
    "lingo.data": 2,
    "lingo.decode": 3,
    "lingo.learner": 4,
    "lingo.checkpoints": 4,
    "lingo.runtimes": 5,
    "lingo.contract": 6,
    "lingo.inspection": 7,
    "lingo.trainer": 8,
    "lingo.study": 9,
    "lingo.cli": 10,
    "lingo": 11,
    "tasks": 12,
    "params": 13,
    "tools": 14,
}


def room(module: str) -> str | None:
    """Returns the longest entry of FLOORS that a module lies in."""
    parts = module.split(".")
    names = [".".join(parts[: i + 1]) for i in range(min(2, len(parts)))]
    return next((n for n in reversed(names) if n in FLOORS), None)


def source_files() -> list[pathlib.Path]:
    folders = ("lingo", "tasks", "params", "tools")
    return [f for folder in folders for f in sorted((ROOT / folder).rglob("*.py"))]


def imported(file: pathlib.Path) -> list[tuple[str, int]]:
    """Returns (module, line) for every import in a file, also those inside functions."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: imports are absolute"
            module = node.module or ""
            found += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
    return found


@pytest.mark.parametrize("file", source_files(), ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_point_down(file: pathlib.Path) -> None:
    module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    here = room(module)
    assert here is not None, f"{file}: in no room of the house"
    for other, line in imported(file):
        there = room(other)
        if there is None or there == here:
            continue
        assert FLOORS[there] < FLOORS[here], f"{file}:{line}: {here} imports {other}"


def test_only_the_command_line_and_tools_define_flags() -> None:
    allowed = (ROOT / "lingo/cli", ROOT / "tools")
    for file in source_files():
        if not any(file.is_relative_to(folder) for folder in allowed):
            assert "absl.flags" not in {m for m, _ in imported(file)}, file


def test_declaring_and_building_layers_imports_no_tensorflow() -> None:
    modules = sorted(
        ".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for f in source_files()
        if not f.is_relative_to(ROOT / "tools")
    )
    code = f"import importlib, sys\nfor m in {modules}: importlib.import_module(m)\n"
    code += "sys.exit('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
