"""`python -m tools.day gpu|tpu`: runs what was never run on such devices.

Each item of `tools/day/items.py` runs as processes with a limit and leaves a line in
DIR/lines.jsonl; DIR/report.md has them as a table. The same command goes on where a day was
interrupted: an item that has a line is not run again. It returns 0 if all items have a line, 3 if
some were not run.

`--small` runs some of the items with tiny models on this processor: it shows that the code runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.day.day import run_day
from tools.day.items import ITEMS, shrink

UNFINISHED = 3


def main(arguments: list[str]) -> int:
    """Runs the items that fit; returns the exit code."""
    parser = argparse.ArgumentParser("python -m tools.day", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("kind", choices=ITEMS)
    parser.add_argument("--small", action="store_true", help="tiny models on this processor")
    parser.add_argument("--minutes", type=float, default=30, help="for all items")
    parser.add_argument("--out", type=Path, help="a folder; else build/day/KIND")
    values = parser.parse_args(arguments)
    items = ITEMS[values.kind]
    if values.small:
        items = tuple(shrink(item) for item in items if item.in_small)
    out = values.out or Path("build", "day", values.kind + ("_small" if values.small else ""))
    is_done = run_day(
        values.kind, items, out.resolve(), minutes=values.minutes, has_virtual_devices=values.small
    )
    print(f"report: {out / 'report.md'}")
    return 0 if is_done else UNFINISHED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
