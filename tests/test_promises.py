"""tests/promises.md names every runtime, format, fault and recipe, and tests that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import get_args

import pytest

import lingo.runtimes
from lingo.export.formats import Format
from lingo.mesh.rules import RECIPES
from lingo.runtimes.runtime import Runtime
from tools.source_tree import ROOT
from tools.suite.selection import PROMISES, promised_tests

RUNTIMES = [
    name
    for name, value in vars(lingo.runtimes).items()
    if isinstance(value, type) and issubclass(value, Runtime) and value is not Runtime
]


def subjects(section: str) -> str:
    """Returns the first column of a section's table."""
    text = PROMISES.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) > 1
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("Runtimes", RUNTIMES),
        ("Formats of exports", [*get_args(Format), "huggingface"]),
        ("Faults", [f"{number}:" for number in range(1, 13)]),
        ("Pages", ["README.md"]),
        ("Experiments and recipes", list(RECIPES)),
    ],
)
def test_every_promise_has_a_test(section: str, words: list[str]) -> None:
    found = subjects(section)
    assert [word for word in words if not re.search(rf"(?<!\w){re.escape(word)}", found)] == []


def test_every_test_that_is_named_exists() -> None:
    files = sorted({test.partition("::")[0] for test in promised_tests()})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "core", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {line for line in done.stdout.splitlines() if "::" in line}
    found |= {line.partition("[")[0] for line in found}
    assert [test for test in promised_tests() if test not in found] == []
