"""Definitions of a notebook's cells, as a module."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lingo.config.cells import definitions
from lingo.config.params import ParamError


def run(text: str) -> dict:
    """Returns the names that a module defines."""
    module: dict = {}
    exec(compile(text, "notebook.py", "exec"), module)  # noqa: S102
    return module


def test_a_class_has_its_bases_and_constants_as_they_were_defined_last() -> None:
    cells = [
        "import math\nHALF = 0.4\nTWO = 3",
        "class Base:\n    value = HALF",
        "HALF = 0.5",
        "class Base:\n    value = HALF\n\nTWO = 2",
        "@staticmethod\ndef unused(): return 1/0\nclass Mine(Base):\n"
        "    def area(self): return math.pi * TWO",
        "print('trains'); 1/0",
    ]
    module = run(text := definitions(cells, ["Mine"]))
    assert module["Mine"].value == 0.5
    assert module["Mine"]().area() == pytest.approx(6.2831853)
    assert "unused" not in text
    assert "print" not in text


def test_functions_that_call_each_other_are_both_defined() -> None:
    cells = [
        "def even(n): return n == 0 or odd(n - 1)",
        "def odd(n): return n > 0 and even(n - 1)",
    ]
    assert run(definitions(cells, ["even"]))["even"](4)


def test_comments_and_decorators_stay_with_their_statement() -> None:
    cells = [
        "import functools",
        "@functools.cache\ndef f():\n    return 3  # three",
        "a = 1; b = 2 # b",
    ]
    text = definitions(cells, ["f", "b"])
    assert "@functools.cache\ndef f():\n    return 3  # three" in text
    assert "\nb = 2 # b\n" in text
    assert "a = 1" not in text


def test_imports_of_a_future_and_of_several_submodules_are_kept() -> None:
    cells = ["from __future__ import annotations", "import os.path\nimport json", "import os.abc"]
    text = definitions([*cells, "def f(x: Later): return os.path.sep"], ["f"])
    assert text.index("__future__") < text.index("import os.path") < text.index("import os.abc")
    assert "json" not in text


def test_a_cell_that_is_not_python_and_names_of_a_function_itself_do_not_count() -> None:
    cells = ["this is not Python", "x = 3", "def f(x): return x"]
    assert "x = 3" not in definitions(cells, ["f"], known={"x"})


def test_a_name_that_a_loop_defines_is_refused_with_what_to_do() -> None:
    cells = ["for size in range(3): pass", "def f(): return size"]
    with pytest.raises(ParamError, match=r"f uses size, which no import.*%%writefile"):
        definitions(cells, ["f"], known={"size", "f"})


def test_statements_that_change_a_name_follow_those_that_defined_it() -> None:
    cells = [
        "x = [8, 4]\ntable = {}",
        "x = [value / 2 for value in x]\nx[0] += 1\nx += [7]",
        "table['a'] = x; table['b'] = 3",
        "def f(): return table",
        "class Mine: pass",
        "Mine.size = 4\nclass Mine(Mine): pass",
    ]
    module = run(definitions(cells, ["f", "Mine"]))
    assert module["f"]() == {"a": [5, 2, 7], "b": 3}
    assert module["Mine"].size == 4
    assert "x" not in run(definitions([*cells, "table = {'c': 1}"], ["f"]))


def test_a_function_without_a_name_of_its_own_is_refused() -> None:
    with pytest.raises(ParamError, match="<lambda> is not defined by def or class at the top of"):
        definitions(["f = lambda: 1"], ["<lambda>"])


PROGRAM = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.load(sys.stdin):
    shell.run_cell(cell, store_history=True).raise_error()
"""
CELLS = [
    "from lingo.config.cells import import_cells\nfrom lingo.config import serial",
    "from lingo.layers import Layer, Linear\nSIZE = 3",
    "class Mine(Layer):\n    size: int = SIZE  # a size\n    inner: Layer = Linear",
    "cfg = Mine.params(size=4)",
    "own = import_cells(cfg)\nassert own.cls is not Mine and own.cls.__name__ == 'Mine'",
    "assert (own.size, own.cls.params().size) == (4, 3)",
    "saved = serial.load(serial.dump(own, serial.Origin(), ''))  # it needs no trust",
    "assert saved.params.cls is own.cls and saved.params.size == 4",
    "assert import_cells(cfg).cls is own.cls  # one file, imported once",
    "class Mine(Layer):\n    size: int = 5\ncfg = Mine.params()",
    "assert import_cells(cfg).cls is not own.cls and import_cells(cfg).size == 5",
    "assert import_cells(Linear.params()) == Linear.params()",
    "import numpy as np\nNAN = float('nan')\nnumbers = {'x': np.arange(3), 'y': [NAN, 'a', None]}",
    "class Mine(Layer):\n    size: int = len(numbers)",
    "assert import_cells(Mine.params()).size == 2",
    "def is_refused():\n"
    "    try:\n        import_cells(Mine.params())\n"
    "    except Exception as error:\n"
    "        return 'numbers has another value in the notebook than' in str(error)",
    "assert not is_refused()\nfor i in range(2): numbers['x'][i] = 7",
    "assert is_refused()\nnumbers['x'] = np.arange(3)",
    "assert not is_refused()\nnumbers['y'].append(1)",
    "assert is_refused()",
]


def test_classes_of_cells_are_saved_and_read_by_name(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(CELLS),
        env=home,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = sorted(tmp_path.glob(".cache/lingo/notebooks/*/notebook.py"))
    assert len(files) == 4  # one of each text
    assert any("size: int = SIZE  # a size" in file.read_text() for file in files)
