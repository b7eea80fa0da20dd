"""What a directory says of the run in it: where to go on, and whether what is asked for differs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lingo.config import serial, text
from lingo.config.params import ParamError
from lingo.errors import LingoError
from lingo.train.record import checkpoint
from lingo.train.record.checkpoint import Checkpoint, NoUsableCheckpoint
from lingo.train.record.run_directory import CONFIG, RunDirectory

RESOLVED = "config.txt"

_CHANGE = "Train in another directory, or pass --allow_change to go on from its checkpoint."


class ChangedConfiguration(LingoError):
    """The directory holds a run with another configuration."""

    exit_code: ClassVar[int] = 7


def latest_checkpoint(run: RunDirectory) -> Checkpoint | None:
    """Returns the checkpoint to go on from, or None for a run that never had one.

    Raises:
        NoUsableCheckpoint: if there are or were checkpoints, and none can be used.
    """
    found = checkpoint.latest(run.checkpoints)
    if found is None and (said := _said(run)):
        raise NoUsableCheckpoint(
            f"{run.checkpoints} holds no checkpoint, but {said}.\n"
            "Put the checkpoints back, or train in another directory."
            f" To start here from step 0, delete STATUS and {run.metrics.name}."
        )
    return found


def _said(run: RunDirectory) -> str:
    """Returns in words that a run has had checkpoints, "" if nothing says so.

    STATUS names the step of the latest. Reports go on between checkpoints, so they tell only where
    there is no STATUS, which is there from the start.
    """
    status, rows = run.status(), run.read_metrics()
    if status is not None and status.step:
        return f"STATUS says {status.state} at step {status.step}"
    if status is None and rows:
        return f"{run.metrics.name} goes to step {rows[-1]['step']}, and there is no STATUS"
    return ""


def check_changes(
    run: RunDirectory, lines: Sequence[text.Line], found: Checkpoint | None, *, allow_change: bool
) -> list[text.Change]:
    """Returns the fields in which a directory's run differs from what is asked for.

    Args:
        run: the directory.
        lines: the resolved text of what is asked for.
        found: the checkpoint to go on from; without one any change goes.
        allow_change: whether it does with one.

    Raises:
        ChangedConfiguration: if one of them is not operational.
    """
    before = _before(run)
    changes = [] if before is None else text.diff(before, lines)
    if found is None or allow_change:
        return changes
    refused = [str(change) for change in changes if not change.operational]
    if before is None and found.metadata.get("config") != digest(lines):
        refused = [
            f"in which fields, {RESOLVED} and {CONFIG} would say: they are missing or damaged"
        ]
    if refused:
        listed = "\n  ".join(refused)
        raise ChangedConfiguration(
            f"{run.path} was begun with another configuration:\n  {listed}\n{_CHANGE}"
        )
    return changes


def digest(lines: Sequence[text.Line]) -> str:
    """Returns the digest that checkpoints record: of what may not change when a run resumes."""
    return text.digest(line for line in lines if not line.operational)


def check_data(run: RunDirectory, data: Mapping[str, Any], found: Checkpoint) -> None:
    """Raises ChangedConfiguration if a checkpoint comes from other data.

    Args:
        run: the directory.
        data: what identifies the data now, by input.
        found: the checkpoint.
    """
    before = found.metadata.get("data")
    if before is not None and before != json.loads(json.dumps(data)):
        raise ChangedConfiguration(
            f"{run.path} was begun with other data:\n  {before}\n  is now {data}\n{_CHANGE}"
        )


def _before(run: RunDirectory) -> Sequence[text.Line] | None:
    """Returns the resolved text of a directory's run.

    It is in config.txt; where that is missing, or not the text that config.json has the digest of,
    it is made again from config.json. None if neither can be read.
    """
    written = text.read(run.read(RESOLVED) or "")
    saved = run.read(CONFIG)
    if saved is None or (written and _recorded(saved) in (None, text.digest(written))):
        return written or None
    try:
        return text.resolve(serial.load(saved).params)
    except ParamError:  # damaged, too, or it uses classes that this call cannot know
        return written or None


def _recorded(saved: str) -> str | None:
    """Returns the digest of the resolved text that a config.json names; None if it names none."""
    try:
        content = json.loads(saved)
    except ValueError:
        return None
    found = content.get("digest") if isinstance(content, dict) else None
    return found if isinstance(found, str) else None
