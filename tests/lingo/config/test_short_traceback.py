"""Errors in a notebook: first the user's own lines and one line of lingo's, then all on request."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from lingo.config.short_traceback import shorten_traceback

PROGRAM = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="nocolor")
for cell in json.load(sys.stdin):
    shell.run_cell(cell, store_history=True)
    print("=====")
"""
CELLS = [
    "import lingo\nfrom lingo.layers import Layer",
    "class Mine(Layer):\n    def setup(self):\n        return int('no number')",
    "cfg = lingo.get('lm.source.tiny')\ncfg.task.model.stack.layer.ffn = Mine.params()",
    "lingo.show(cfg)",
    "%tb",
    "lingo.load(3)",
    "lingo.get('no.such.name')",
]


def test_a_notebook_shows_the_users_lines_and_all_on_request(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(CELLS),
        env=home,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    *quiet, short, whole, load, get, _ = done.stdout.split("=====\n")
    assert quiet == ["", "", ""]
    frames = re.findall(r"^(?:Cell|File) .*?, (?:line|in) (.*)", short, re.MULTILINE)
    assert frames == ["1", "3, in Mine.setup(self)"]
    assert "---> 1 lingo.show(cfg)" in short
    assert "    return int('no number')" in short
    *_, message, rest = short.rstrip().splitlines()
    assert re.match(r"ValueError: .*ffn: invalid literal for int\(\) with .*'no number'$", message)
    assert rest == "(%tb shows the whole traceback)"
    assert len(whole.splitlines()) > 2 * len(short.splitlines())
    assert "lingo/config/node/build.py" in whole
    assert "lingo.load takes the directory of a run, got 3 (int)" in load
    assert "There is no experiment 'no.such.name'" in get
    assert "lingo/config" not in load + get


def test_outside_a_notebook_an_error_stays_as_it_is() -> None:
    error = ValueError("no")
    shorten_traceback(error)
    assert not vars(error)
