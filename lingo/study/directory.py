"""The files in the directory of a sweep, beside the run of each trial in a directory of its own.

sweep.json            what was asked for
results.json          what came of it so far, the best trial first
000-.../log.txt       what the process of a trial printed
000-.../trial.json    the values that Optuna proposed for it
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lingo.config.params import ParamError
from lingo.storage.files import write_text
from lingo.study.search import Point
from lingo.trainer.directory.run_directory import RunDirectory

SWEEP = "sweep.json"
RESULTS = "results.json"
TRIAL = "trial.json"
LOG = "log.txt"


def read_json(file: Path) -> dict[str, Any] | None:
    """Returns the content of a file, or None if it does not exist.

    Raises:
        ParamError: if it cannot be read, or is not a JSON object.
    """
    text = RunDirectory(file.parent).read(file.name)
    if text is None and not os.path.lexists(file):
        return None
    try:
        return dict(json.loads(text or ""))
    except (ValueError, TypeError, RecursionError):
        raise ParamError(f"{file} is not what a sweep writes") from None


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Writes a file. Raises StorageError if it cannot be written."""
    write_text(file, json.dumps(content, indent=1) + "\n")


def read_points(logdir: Path, targets: Collection[str]) -> dict[int, Point]:
    """Returns the point of each trial that has a trial.json, by the number of the trial.

    Raises:
        ParamError: if a trial.json holds something else.
    """
    points: dict[int, Point] = {}
    for file in logdir.glob(f"*/{TRIAL}"):
        match read_json(file):
            case {"number": int(number), "values": dict(values)} if set(values) == set(targets):
                points[number] = {target: str(values[target]) for target in targets}
            case _:
                raise ParamError(f"{file} is not what a sweep writes")
    return points
