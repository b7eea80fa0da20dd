"""The small form of every benchmark runs, and every module of the tools is imported."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys

import pytest

from tools import bench
from tools.harness import choose
from tools.source_tree import ROOT, SourceTree

BENCHES = [module.name for module in pkgutil.iter_modules(bench.__path__)]
RANKING = ROOT / "docs" / "results" / "plan_ranking.jsonl"
TABLE = re.compile(r"least +median +most\b.*\n(.*\n)*?.* \d+\.\d{3}\b")
IMPORTS = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(("value", "chosen"), [("", 12), ("full", 12), ("small", 1)])
def test_an_environment_variable_chooses_the_form(value, chosen, monkeypatch):
    monkeypatch.setenv("LINGO_BENCH", value)
    assert choose(12, small=1) == chosen


@pytest.mark.parametrize("name", [name for name in BENCHES if name != "__main__"])
def test_every_comparison_runs(name):
    before = RANKING.stat().st_mtime_ns
    done = run_python("-m", "tools.bench", name, "--small")
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    assert TABLE.search(done.stdout), done.stdout
    assert RANKING.stat().st_mtime_ns == before


def test_every_module_is_imported_and_prints_nothing():
    modules = [file.module for file in SourceTree(folders=("tools",)).files]
    done = run_python("-c", IMPORTS, *modules)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout == ""
