"""Resuming: the checkpoint to resume from, and checks that configuration and data are the same."""

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
from lingo.trainer.directory.run_directory import CONFIG, METRICS, RunDirectory

RESOLVED = "config.txt"

_CHANGE = "Train in another directory, or pass --allow_change to go on from its checkpoint."


class ChangedConfiguration(LingoError):
    """The directory holds a run with another configuration."""

    exit_code: ClassVar[int] = 7


def latest_checkpoint(run: RunDirectory) -> Checkpoint | None:
    """Returns the checkpoint to resume from, or None for a run that never had one.

    Raises:
        NoUsableCheckpoint: if there are or were checkpoints, and none can be used.
    """
    found = store.latest(run.checkpoints)
    if found is None and (evidence := _checkpoint_evidence(run)):
        raise NoUsableCheckpoint(
            f"{run.checkpoints} holds no checkpoint, but {evidence}.\n"
            "Put the checkpoints back, or train in another directory."
            f" To start here from step 0, delete STATUS and {run.metrics.path.name}."
        )
    return found


def _checkpoint_evidence(run: RunDirectory) -> str:
    """Returns the evidence that a run had checkpoints, as a text; "" if there is none.

    STATUS names the step of the latest. Reports are also written between checkpoints, so they
    count only if STATUS, which is written at the start, is missing.
    """
    status = run.status()
    if status is not None:
        return f"STATUS says {status.state} at step {status.step}" if status.step else ""
    if (run.path / METRICS).exists() and (rows := run.metrics.read()):
        return f"{run.metrics.path.name} goes to step {rows[-1]['step']}, and there is no STATUS"
    return ""


def last_step(run: RunDirectory) -> int:
    """Returns the step of a run's last checkpoint, or the step in STATUS if that is later.

    So a directory of checkpoints that is temporarily not mounted still counts.
    """
    status = run.status()
    steps = [status.step if status else 0]
    with contextlib.suppress(NoUsableCheckpoint):
        steps += store.steps(run.checkpoints)
    return max(steps)


def check_changes(
    run: RunDirectory, lines: Sequence[text.Line], found: Checkpoint | None, *, allow_change: bool
) -> list[text.Change]:
    """Returns the fields in which a directory's run differs from the requested one.

    Args:
        run: the run directory.
        lines: the resolved text of the requested configuration.
        found: the checkpoint to resume from; without one any change is allowed.
        allow_change: whether any change is allowed with a checkpoint, too.

    Raises:
        ChangedConfiguration: if a field that is not operational differs, and may not.
    """
    before = _previous_lines(run)
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
    """Returns the digest of all fields that may not change when a run resumes."""
    return text.digest(line for line in lines if not line.operational)


def check_data(run: RunDirectory, data: Mapping[str, Any], found: Checkpoint) -> None:
    """Raises ChangedConfiguration if a checkpoint comes from data of other fingerprints."""
    before = found.metadata.get("data")
    if before is None or before == json.loads(json.dumps(data)):
        return
    listed = "\n  ".join(map(str, _changed_leaves(before, data)))
    raise ChangedConfiguration(f"{run.path} was begun with other data:\n  {listed}\n{_CHANGE}")


def numeric_changes(found: Checkpoint, recorded: Mapping[str, Any]) -> list[text.Change]:
    """Returns the changes of machine and versions that may change the last bits of results.

    Args:
        found: the checkpoint from which a run resumes.
        recorded: the metadata that its next checkpoint will record.
    """
    kinds = [kind for kind in ("versions", "numerics", "devices") if kind in found.metadata]
    return _changed_leaves(
        {kind: found.metadata[kind] for kind in kinds}, {kind: recorded[kind] for kind in kinds}
    )


def _changed_leaves(before: Any, after: Any) -> list[text.Change]:
    """Returns the differences between two trees of dicts; `after` may have other JSON types."""
    old, new = dict(_leaves(before)), dict(_leaves(json.loads(json.dumps(after))))
    changes = (text.Change(path, old.get(path), new.get(path)) for path in {**old, **new})
    return [change for change in changes if change.before != change.after]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the path and the text of every leaf in a tree of dicts."""
    if not isinstance(value, dict):
        yield path, str(value)
        return
    for name, inner in value.items():
        yield from _leaves(inner, f"{path}.{name}" if path else name)


def _previous_lines(run: RunDirectory) -> Sequence[text.Line] | None:
    """Returns the resolved text of a directory's run.

    It is in config.txt; if that is missing, or does not match the digest in config.json, the text
    is made again from config.json. None if neither can be read.
    """
    written = text.read(run.read(RESOLVED) or "")
    saved = run.read(CONFIG)
    if saved is None or (written and serial.recorded_digest(saved) in (None, text.digest(written))):
        return written or None
    try:
        return text.resolve(serial.load(saved).params)
    except ParamError:  # it is damaged, too, or uses classes that this process does not know
        return written or None
