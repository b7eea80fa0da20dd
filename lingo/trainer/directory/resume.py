"""What a directory says of the run in it: where to go on, and whether what is asked for differs."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.errors import NoUsableCheckpoint
from lingo.config import text
from lingo.config.errors import LingoError
from lingo.config.params import ParamError
from lingo.config.serial import serial
from lingo.trainer.directory.run_directory import CONFIG, RunDirectory

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
    found = store.latest(run.checkpoints)
    if found is None and (said := _said(run)):
        raise NoUsableCheckpoint(
            f"{run.checkpoints} holds no checkpoint, but {said}.\n"
            "Put the checkpoints back, or train in another directory."
            f" To start here from step 0, delete STATUS and {run.metrics.path.name}."
        )
    return found


def _said(run: RunDirectory) -> str:
    """Returns in words that a run has had checkpoints, "" if nothing says so.

    STATUS names the step of the latest. Reports go on between checkpoints, so they tell only where
    there is no STATUS, which is there from the start.
    """
    status, rows = run.status(), run.metrics.read()
    if status is not None and status.step:
        return f"STATUS says {status.state} at step {status.step}"
    if status is None and rows:
        return f"{run.metrics.path.name} goes to step {rows[-1]['step']}, and there is no STATUS"
    return ""


def last_step(run: RunDirectory) -> int:
    """Returns the step of a run's last checkpoint, or what STATUS says where that is not there.

    So a directory of checkpoints that is not mounted for a while is not forgotten.
    """
    said = run.status()
    with contextlib.suppress(NoUsableCheckpoint):
        return max([*store.steps(run.checkpoints), said.step if said else 0])
    return said.step if said else 0


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
            f"{run.path} was begun with another configuration (was -> is now):\n  {listed}\n"
            f"{_CHANGE}\nWith the old values: lingo train --run={shlex.quote(str(run.path))}"
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
    if before is None or before == (after := json.loads(json.dumps(data))):
        return
    old, new = dict(_leaves(before)), dict(_leaves(after))
    changes = (text.Change(path, old.get(path), new.get(path)) for path in {**old, **new})
    listed = "\n  ".join(str(change) for change in changes if change.before != change.after)
    raise ChangedConfiguration(f"{run.path} was begun with other data:\n  {listed}\n{_CHANGE}")


def numeric_changes(found: Checkpoint, recorded: Mapping[str, Any]) -> list[text.Change]:
    """Returns in what the machine differs that may change the last bits of results.

    Args:
        found: the checkpoint that a run goes on from.
        recorded: what its next one will record.
    """
    kinds = ("versions", "numerics", "devices")
    before, after = (
        dict(_leaves({kind: said[kind] for kind in kinds if kind in found.metadata}))
        for said in (found.metadata, json.loads(json.dumps(recorded)))
    )
    changes = (text.Change(path, before.get(path), after.get(path)) for path in {**before, **after})
    return [change for change in changes if change.before != change.after]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the path and the text of everything in a tree of dicts."""
    if not isinstance(value, dict):
        yield path, str(value)
        return
    for name, inner in value.items():
        yield from _leaves(inner, f"{path}.{name}" if path else name)


def _before(run: RunDirectory) -> Sequence[text.Line] | None:
    """Returns the resolved text of a directory's run.

    It is in config.txt; where that is missing, or not the text that config.json has the digest of,
    it is made again from config.json. None if neither can be read.
    """
    written = text.read(run.read(RESOLVED) or "")
    saved = run.read(CONFIG)
    if saved is None or (written and serial.recorded_digest(saved) in (None, text.digest(written))):
        return written or None
    try:
        return text.resolve(serial.load(saved).params)
    except ParamError:  # damaged, too, or it uses classes that this call cannot know
        return written or None
