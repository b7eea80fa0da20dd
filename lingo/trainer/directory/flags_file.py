"""flags.txt: the command line that goes on with a run, from any directory.

    lingo train --flagfile=runs/tiny/flags.txt

A flag file has a flag a line, without the spaces around it. What it cannot hold, config.json does.
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
        run: directory of the run.
        config: the text of its config.json.
        exp: what asks for the experiment; "" for that of config.json, its overrides included.
        overrides: texts, in order.
        carried_out: flags that say how the run is carried out.
    """
    lines = [f"--exp={exp}", f"--logdir={run}", *(f"--set={text}" for text in overrides)]
    lines += carried_out
    if not exp or not all(map(_fits, lines)):
        files = json.loads(config)["files"].values()
        trusted = (f"--trust={file['path']}" for file in files)
        lines = [f"--run={run}", *filter(_fits, [*trusted, *carried_out])]
    return "".join(f"{line}\n" for line in lines)


def _fits(line: str) -> bool:
    """Returns whether a flag file gives a line back as it is."""
    try:
        line.encode()
    except UnicodeEncodeError:  # a name of bytes that are no text
        return False
    return line.splitlines() == [line.strip()]
