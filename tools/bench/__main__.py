"""`python -m tools.bench NAME`: runs a benchmark, which prints ratios measured in that one run.

It returns 0 if what is wanted of them holds, 1 if it misses any, which it prints at the end, and 2
for a name that there is not. Ratios without a wanted number are for reading.

`python -m tools.bench NAME --small` runs the small form of a benchmark, which takes seconds: every
comparison happens, with little to compute. It returns 0 if all of the code runs: the ratios of this
form mean nothing.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from pathlib import Path
from unittest import mock

from tools.harness import FORM, SMALL, Report


def main(arguments: list[str]) -> int:
    """Runs `run(report)` of the module that is named; returns the exit code."""
    names = [
        m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name != "__main__"
    ]
    usage = f"usage: python -m tools.bench {{{','.join(names)}}} [--small]"
    match arguments:
        case ["--help"]:
            print(f"{__doc__}\n{usage}")
            return 0
        case [name] if name in names:
            return _run(name).exit_code()
        case [name, "--small"] if name in names:
            with mock.patch.dict(os.environ, {FORM: SMALL}):  # modules read it at their import
                _run(name)
            print("all of the small form ran; its ratios mean nothing, and no bound was compared")
            return 0
    print(usage, file=sys.stderr)
    return 2


def _run(name: str) -> Report:
    report = Report()
    _print_load("beginning")
    importlib.import_module(f"tools.bench.{name}").run(report)
    _print_load("end")
    return report


def _print_load(when: str) -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors at the {when}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
