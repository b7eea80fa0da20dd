"""Lists, inspects or verifies the checkpoints of a run.

    lingo checkpoint list --run=runs/tiny
    lingo checkpoint inspect --run=runs/tiny                    the latest that is not damaged
    lingo checkpoint inspect --run=runs/tiny --step=200 --format=json
    lingo checkpoint inspect --run=runs/tiny --step=best        the best by evaluate.metric
    lingo checkpoint verify --run=runs/tiny                     reads every byte of each checkpoint
    lingo checkpoint verify --run=runs/tiny --step=latest

`list` reads only manifests and sizes of files. Its marks say why a checkpoint is kept: `latest`,
`every` (a multiple of checkpoint.keep_every_steps), `best` (one of the checkpoint.keep_best best)
or `rewind` (the run would go back to it). `inspect` prints the digest, type and shape of every
tensor. Equal digests mean equal numbers, even if layers were stacked or tensors were split
differently. In JSON, `weights` is path -> digest. The exit code of `verify` is 3 if a checkpoint is
damaged. No action changes anything in the run.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint, open_checkpoint, open_sound
from lingo.checkpoints.errors import DamagedCheckpoint, DeletedCheckpoint, NoUsableCheckpoint
from lingo.checkpoints.manifest import MANIFEST
from lingo.checkpoints.run_counters import RunCounters, read_counters
from lingo.cli import experiment_options
from lingo.cli.command import FormatOptions, RootOptions, UsageError
from lingo.cli.options import TrustOptions
from lingo.config.options import option, option_class, word
from lingo.config.params import ParamError
from lingo.contract import Experiment, build_experiment
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation.best import BEST, choose
from lingo.trainer.saver import retention

LATEST = "latest"

_WEIGHTS = "weights/"


@option_class
class Options(FormatOptions, TrustOptions, RootOptions):
    """The options of `lingo checkpoint`."""

    action: str = word("list|inspect|verify")
    run: str | None = option("Directory of the run.")
    step: str | None = option(f"The checkpoint of this step, {LATEST}, or, to inspect, {BEST}.")


def run(options: Options) -> int:
    """Runs `list`, `inspect` or `verify`; returns 0, or 3 if `verify` found damage."""
    actions: Mapping[str, Callable[[Options, RunDirectory], int]] = {
        "list": _list,
        "inspect": _inspect,
        "verify": _verify,
    }
    if options.action not in actions:
        known = "|".join(actions)
        raise UsageError(f"lingo checkpoint {options.action}: the actions are {known}")
    if options.run is None:
        raise UsageError("no run given: --run=DIR")
    directory = RunDirectory(options.run)
    if not directory.exists and not directory.checkpoints.is_dir():
        raise UsageError(f"{options.run} is not a run directory: it holds no checkpoints")
    return actions[options.action](options, directory)


# ---- list --------------------------------------------------------------------------------------


def _list(options: Options, directory: RunDirectory) -> int:
    if options.step is not None:
        raise UsageError("list shows all checkpoints: leave out --step")
    steps = store.steps(directory.checkpoints)
    marks = _marks(options, directory, steps) if steps else {}
    found = [_row(directory, step, marks.get(step, [])) for step in steps]
    rows = [row for row in found if row is not None]
    aside = store.quarantined_names(directory.checkpoints)
    if options.as_json:
        print(json.dumps({"checkpoints": rows, "set_aside": aside}, indent=1))
        return 0
    if rows:
        print(f"{'step':>10}  {'written':19}  {'bytes':>15}  marks")
    for row in rows:
        when = "" if row["time"] is None else time.strftime("%F %T", time.localtime(row["time"]))
        size = "" if row["bytes"] is None else f"{row['bytes']:,}"
        state = f"damaged: {row['damage']}" if row["damage"] else ", ".join(row["marks"]) or "-"
        print(f"{row['step']:>10}  {when:19}  {size:>15}  {state}")
    for name in aside:
        print(f"set aside: {directory.checkpoints / name}")
    if not rows and not aside:
        print(f"{directory.path} has no checkpoint yet.")
    return 0


def _row(directory: RunDirectory, step: int, marks: list[str]) -> dict[str, Any] | None:
    """Returns the table row of a checkpoint, without reading its tensors; None if it is deleted."""
    path = store.step_path(directory.checkpoints, step)
    row: dict[str, Any] = {"step": step, "time": None, "bytes": None, "damage": None}
    row["marks"] = marks
    try:
        found = open_checkpoint(path)
        row |= {"time": (path / MANIFEST).stat().st_mtime, "bytes": found.num_bytes}
        found.verify(content=False)
    except (DeletedCheckpoint, FileNotFoundError):  # a run in progress has deleted it
        return None
    except (DamagedCheckpoint, NoUsableCheckpoint) as error:
        row["damage"] = _damage(error)
    return row


def _damage(error: DamagedCheckpoint | NoUsableCheckpoint) -> str:
    if isinstance(error, DamagedCheckpoint):
        return f"{error.file}: {error.reason}"
    return str(error)


def _marks(options: Options, directory: RunDirectory, steps: list[int]) -> dict[int, list[str]]:
    """Returns step -> why this checkpoint is kept; {} if the configuration cannot be read."""
    try:
        experiment = _experiment(options)
    except ParamError as error:
        experiment_options.print_note(f"no marks: {str(error).splitlines()[0]}")
        return {}
    return retention(experiment, directory, _position(directory, steps), steps).reasons(steps)


def _experiment(options: Options) -> Experiment:
    return build_experiment(
        experiment_options.read_run(str(options.run), (), options.trust, options.roots())
    )


def _position(directory: RunDirectory, steps: list[int]) -> RunCounters:
    """Returns the counters in the run's latest checkpoint that can be opened."""
    for step in reversed(steps):
        with contextlib.suppress(DamagedCheckpoint, NoUsableCheckpoint):
            found = open_checkpoint(store.step_path(directory.checkpoints, step))
            return read_counters(step, found.metadata)
    return RunCounters(steps[-1])


# ---- inspect -----------------------------------------------------------------------------------


def _inspect(options: Options, directory: RunDirectory) -> int:
    found = _find(options, directory)
    digests = dict(found.digests())
    tensors = {
        name: {"shape": list(shape), "dtype": dtype, "digest": digests[name]}
        for name, (shape, dtype) in found.tensors.items()
    }
    weights = {
        name.removeprefix(_WEIGHTS): tensor["digest"]
        for name, tensor in tensors.items()
        if name.startswith(_WEIGHTS)
    }
    content = {
        "step": found.step,
        "path": str(found.path),
        "bytes": found.num_bytes,
        "data_position": found.metadata.get("data_position"),
        "metadata": found.metadata,
        "weights": weights,
        "tensors": tensors,
    }
    if options.as_json:
        print(json.dumps(content, indent=1))
        return 0
    for key, value in content.items():
        if key not in ("weights", "tensors"):
            print(f"{key}: {value if isinstance(value, str | int) else json.dumps(value)}")
    for name, tensor in tensors.items():
        print(f"{tensor['digest']}  {tensor['dtype']}{tensor['shape']}  {name}")
    return 0


def _find(options: Options, directory: RunDirectory) -> Checkpoint:
    """Returns the checkpoint that --step names, by default the latest that is not damaged."""
    if options.step == BEST:
        return choose(_experiment(options), directory, BEST)
    number = None if options.step in (None, LATEST) else _number(options.step)
    found = store.find(directory.checkpoints, number, of=directory.path)
    experiment_options.print_later_errors(found)
    return found


def _number(step: str) -> int:
    if not (step.isascii() and step.isdigit() and len(step) < 16):
        raise UsageError(f"--step={step} is not a step: a number, or {LATEST}")
    return int(step)


# ---- verify ------------------------------------------------------------------------------------


def _verify(options: Options, directory: RunDirectory) -> int:
    steps = store.steps(directory.checkpoints)
    if not steps:
        raise NoUsableCheckpoint(f"{directory.path} has no checkpoint to verify.")
    if options.step == LATEST:
        steps = steps[-1:]
    elif options.step is not None:
        steps = [_number(options.step)]
        store.find_path(directory.checkpoints, steps[0], of=directory.path)
    rows: list[dict[str, Any]] = []
    for step in steps:
        with contextlib.suppress(DeletedCheckpoint):  # a run in progress has deleted it
            damage = _read_damage(store.step_path(directory.checkpoints, step))
            rows.append({"step": step, "damage": damage})
    if not rows:
        raise DeletedCheckpoint(store.step_path(directory.checkpoints, steps[-1]))
    if options.as_json:
        print(json.dumps({"checkpoints": rows}, indent=1))
    else:
        for row in rows:
            state = f"damaged: {row['damage']}" if row["damage"] else "sound"
            print(f"step {row['step']}: {state}")
    return DamagedCheckpoint.exit_code if any(row["damage"] for row in rows) else 0


def _read_damage(path: Path) -> str | None:
    """Reads every byte of a checkpoint; returns what is damaged, or None.

    Raises DeletedCheckpoint if the run deletes the checkpoint meanwhile.
    """
    try:
        open_sound(path)
    except DeletedCheckpoint:
        raise
    except (DamagedCheckpoint, NoUsableCheckpoint) as error:
        return _damage(error)
    return None
