"""flags.txt has the flags that resume a run, from any directory.

    lingo train --flagfile=runs/tiny/flags.txt

A flag file has one flag per line, whose outer spaces are lost. For a flag that does not fit,
flags.txt refers to config.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

FLAGS = "flags.txt"


def flags(
    run: Path,
    config: str,
    *,
    exp: str = "",
    overrides: Sequence[str] = (),
    carried_out: Sequence[str] = (),
) -> str:
    """Returns the text of flags.txt.

    Args:
        run: the directory of the run.
        config: the text of its config.json.
        exp: the value of --exp; "" for the experiment of config.json, with its overrides.
        overrides: the values of --set, in order.
        carried_out: other flags, which do not change the experiment.
    """
    lines = [f"--exp={exp}", f"--logdir={run}", *(f"--set={text}" for text in overrides)]
    lines += carried_out
    if not exp or not all(map(_fits, lines)):
        files = json.loads(config)["files"].values()
        trusted = (f"--trust={file['path']}" for file in files)
        lines = [f"--run={run}", *filter(_fits, [*trusted, *carried_out])]
    return "".join(f"{line}\n" for line in lines)


def _fits(line: str) -> bool:
    """Returns whether a line survives being written to and read from a flag file."""
    try:
        line.encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return False
    return line.splitlines() == [line.strip()]
