"""`python -m tools.bench NAME`: runs a benchmark, which prints ratios measured in that one run.

It returns 0 if what is wanted of them holds, 1 if it misses any, which it prints at the end, and 2
for a name that there is not. Ratios without a wanted number are for reading.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from pathlib import Path

from tools.harness import Report


def main(arguments: list[str]) -> int:
    """Runs `run(report)` of the module that is named; returns the exit code."""
    names = [
        m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name != "__main__"
    ]
    usage = f"usage: python -m tools.bench {{{','.join(names)}}}"
    if arguments == ["--help"]:
        print(f"{__doc__}\n{usage}")
        return 0
    if len(arguments) != 1 or arguments[0] not in names:
        print(usage, file=sys.stderr)
        return 2
    report = Report()
    _print_load("beginning")
    importlib.import_module(f"tools.bench.{arguments[0]}").run(report)
    _print_load("end")
    return report.exit_code()


def _print_load(when: str) -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors at the {when}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
