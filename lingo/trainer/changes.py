"""What has changed since a run began: configuration, code, data, machine.

A run resumes from its latest checkpoint if the checkpoint's records match the request.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.errors import DamagedCheckpoint, NoUsableCheckpoint
from lingo.config import serial, source_record, text
from lingo.config.base.errors import LingoError
from lingo.config.base.hints import hint
from lingo.config.params import ParamError
from lingo.config.source_files import SourceFile
from lingo.trainer.directory.run_directory import CONFIG, METRICS, RESOLVED, SOURCE, RunDirectory


class ChangedConfiguration(LingoError):
    """The directory holds a run with another configuration."""

    exit_code: ClassVar[int] = 7


def latest_checkpoint(
    run: RunDirectory, *, unreadable: Sequence[DamagedCheckpoint] = ()
) -> Checkpoint | None:
    """Returns the checkpoint to resume from, or None for a run that never had one.

    `unreadable` is as for `store.latest`.
    """
    found = store.latest(run.checkpoints, unreadable=unreadable)
    if found is None and (evidence := _checkpoint_evidence(run)):
        raise NoUsableCheckpoint(
            f"{run.checkpoints} holds no checkpoint, but {evidence}.\n"
            "Put the checkpoints back, or train in another directory."
            f" To start here from step 0, delete STATUS and {run.metrics.path.name}."
        )
    return found


def _checkpoint_evidence(run: RunDirectory) -> str:
    """Returns a text with evidence that a run had checkpoints; "" without evidence.

    STATUS, written from the run's start on, names the step of the latest checkpoint. Reports are
    written between checkpoints, too, so reports are evidence only if STATUS is missing.
    """
    status = run.status()
    if status is not None:
        return f"STATUS says {status.state} at step {status.step}" if status.step else ""
    if (run.path / METRICS).exists() and (rows := run.metrics.read()):
        return f"{run.metrics.path.name} goes to step {rows[-1]['step']}, and there is no STATUS"
    return ""


def check_changes(
    run: RunDirectory, lines: Sequence[text.Line], found: Checkpoint | None, *, allow_change: bool
) -> list[text.Change]:
    """Returns the fields in which a directory's run differs from the requested run.

    If there is a checkpoint to resume from, ChangedConfiguration is raised for a field that may not
    change when a run resumes (all but operational fields), unless `allow_change`.
    """
    before, is_sound = _previous_lines(run)
    changes = [] if before is None else text.diff(before, lines)
    if found is None or allow_change or found.metadata.get("config") == digest(lines):
        return changes
    refused = [str(change) for change in changes if not change.operational]
    if not refused and not is_sound:  # if it is sound, an allowed change was not saved yet
        refused = [
            f"the fields are not known: {RESOLVED} and {CONFIG}, which record them, are missing,"
            " damaged or edited"
        ]
    if refused:
        listed = "\n  ".join(refused)
        raise ChangedConfiguration(
            f"{run.path} was begun with another configuration (was -> is now):\n  {listed}\n"
            f"{_ways_on()}\nWith the old values: lingo train --run={shlex.quote(str(run.path))}"
        )
    return changes


def digest(lines: Sequence[text.Line]) -> str:
    """Returns the digest of all fields that may not change when a run resumes."""
    return text.digest(line for line in lines if not line.operational)


def check_source(
    run: RunDirectory,
    source: Mapping[str, SourceFile],
    found: Checkpoint | None,
    *,
    allow_change: bool,
) -> list[text.Change]:
    """Returns the user's own files that have changed since the training, with their digests.

    If there is a checkpoint to resume from, ChangedConfiguration is raised for a changed file,
    unless `allow_change`.
    """
    before = run.read_source()
    if found is not None:
        before = source_record.from_json(found.metadata.get(SOURCE))
    changed = source_record.changed_names(before, source)
    if found is not None and changed and not allow_change:
        files = ", ".join(f"{source[new].path} (was: {SOURCE}/{old})" for old, new in changed)
        raise ChangedConfiguration(f"{run.path} was begun with other code: {files}\n{_ways_on()}")
    return [
        text.Change(f"{SOURCE}/{new}", before[old].sha256[:12], source[new].sha256[:12])
        for old, new in changed
    ]


def _ways_on() -> str:
    return (
        f"Train in another directory, or pass {hint('allow_change')} to go on from its checkpoint."
    )


def check_data(run: RunDirectory, data: Mapping[str, Any], found: Checkpoint) -> None:
    """Raises ChangedConfiguration if a checkpoint was trained on data with other fingerprints."""
    before = found.metadata.get("data")
    if before is None or before == json.loads(json.dumps(data)):
        return
    listed = "\n  ".join(map(str, _changed_leaves(before, data)))
    raise ChangedConfiguration(f"{run.path} was begun with other data:\n  {listed}\n{_ways_on()}")


def numeric_changes(found: Checkpoint, recorded: Mapping[str, Any]) -> list[text.Change]:
    """Returns the changes of machine and versions since a checkpoint.

    These may alter the last bits of results. `recorded` is the next checkpoint's metadata.
    """
    kinds = [kind for kind in ("versions", "numerics", "devices") if kind in found.metadata]
    return _changed_leaves(
        {kind: found.metadata[kind] for kind in kinds}, {kind: recorded[kind] for kind in kinds}
    )


def _changed_leaves(before: Any, after: Any) -> list[text.Change]:
    """Returns the differences between two trees of dicts; `after` is first converted to JSON."""
    old, new = dict(_leaves(before)), dict(_leaves(json.loads(json.dumps(after))))
    changes = (text.Change(path, old.get(path), new.get(path)) for path in {**old, **new})
    return [change for change in changes if change.old_value != change.new_value]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the path and the text of every leaf in a tree of dicts."""
    if not isinstance(value, dict):
        yield path, str(value)
        return
    for name, inner in value.items():
        yield from _leaves(inner, f"{path}.{name}" if path else name)


def _previous_lines(run: RunDirectory) -> tuple[Sequence[text.Line] | None, bool]:
    """Returns the resolved text of a directory's run, and whether config.txt and .json agree on it.

    The text is read from config.txt. If config.txt is missing, or does not match the digest in
    config.json, the text is rebuilt from config.json. It is None if neither file can be read.
    """
    written = text.read(run.read(RESOLVED) or "")
    saved = run.read(CONFIG)
    recorded = serial.recorded_digest(saved or "")
    if written and recorded == text.digest(written):
        return written, True
    if saved is None or (written and recorded is None):
        return written or None, False
    try:
        return text.resolve(serial.load(saved).params), False
    except ParamError:  # config.json is damaged, too, or names classes not known in this process
        return written or None, False
