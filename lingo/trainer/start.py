"""What a run begins with: what its directory holds, its data, its first state, its program.

standing = look(request, run)                   # checkpoint, position, what has changed
start = begin(experiment, run, standing)        # data is opened, the program compiled
write_texts(request, experiment, run, start)    # from here on there is a run
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.chosen import share_checkpoint
from lingo.checkpoints.position import RunCounters, read_counters
from lingo.checkpoints.sources.source import UnusableSource
from lingo.checkpoints.transfer import Transfer
from lingo.config import text
from lingo.contract import Experiment
from lingo.inspection import program as inspection
from lingo.inspection import weight_table
from lingo.learner.state import TrainState, draw_every_weight, initial_state, restore_state
from lingo.processes.processes import Processes
from lingo.runtimes.partitioned import CompiledProgram
from lingo.runtimes.runtime import Program
from lingo.storage import injection
from lingo.trainer.directory import environment
from lingo.trainer.directory.flags_file import FLAGS
from lingo.trainer.directory.resume import (
    RESOLVED,
    ChangedConfiguration,
    check_changes,
    check_data,
    digest,
    latest_checkpoint,
    numeric_changes,
)
from lingo.trainer.directory.run_directory import CONFIG, RunDirectory
from lingo.trainer.evaluation.generate import check_prompts
from lingo.trainer.progress import Progress
from lingo.trainer.request import Request

ENVIRONMENT = "environment.json"

_RECORDED = ("data", "versions", "numerics", "devices", "init_from")  # of the facts, by checkpoints


class Standing(NamedTuple):
    """What a directory says of the run that is asked for.

    Attributes:
        lines: the resolved text of what is asked for.
        found: the checkpoint to go on from, or None.
        changes: fields in which the directory's run differs.
        at: where the run stands.
    """

    lines: list[text.Line]
    found: Checkpoint | None
    changes: list[text.Change]
    at: RunCounters


class Start(NamedTuple):
    """A run that is ready for its first step.

    Attributes:
        standing: what its directory says.
        facts: what it runs on, the content of environment.json.
        warm: where first weights were read; None if they were drawn, or are in a checkpoint.
        program: compiled.
        parts: what the devices of a mesh exchange and hold, in words; "" if a step has no parts.
    """

    standing: Standing
    facts: Mapping[str, Any]
    warm: Transfer | None
    program: Program
    parts: str = ""

    def metadata(self, experiment: Experiment) -> dict[str, Any]:
        """Returns what each checkpoint records, wherever the run stands."""
        known = {key: self.facts[key] for key in _RECORDED if key in self.facts}
        return {"config": digest(self.standing.lines), "seed": experiment.p.seed} | known

    def peak_flops_per_second(self) -> float:
        """Returns what all devices together do of matrix products, measured; 0 if nobody did."""
        return self.facts.get("matmul_flops_per_second", 0.0)


def look(
    request: Request, run: RunDirectory, processes: Processes, *, allow_change: bool
) -> Standing:
    """Returns what a directory says of a run, and clears away what a killed process left there.

    Of several processes the leader looks; the others hear from it where to go on.

    Raises:
        NoUsableCheckpoint: if there are or were checkpoints, and none can be used.
        ChangedConfiguration: if the directory was begun with another configuration.
    """
    lines = text.resolve(request.params)
    found = share_checkpoint(processes, run.checkpoints, lambda: latest_checkpoint(run))
    if processes.is_leader:  # and not if no checkpoint can be used: it may help
        store.clear_leftovers(run.checkpoints)
    changes = check_changes(run, lines, found, allow_change=allow_change)
    at = read_counters(found.step, found.metadata) if found else RunCounters()
    return Standing(lines, found, changes, at)


def begin(
    experiment: Experiment,
    run: RunDirectory,
    standing: Standing,
    progress: Progress,
    processes: Processes,
    *,
    allow_change: bool,
) -> Start:
    """Finds first weights, opens the data, makes the first state, and compiles the program.

    Raises:
        ChangedConfiguration: if the directory was begun with other data, or the processes have
            other configurations or data than the leader.
        CheckpointMismatch, UnusableSource, DataError, ParamError: as their names say.
    """
    found = standing.found
    warm = None if found else experiment.warm_start()  # first: to index data may take minutes
    data = prepared(experiment, progress)
    if found is not None and not allow_change:
        check_data(run, data, found)
    _check_same(processes, {"configuration": digest(standing.lines), "data": data})
    facts = _facts(experiment, data) | _first_weights(warm, found)
    program = _started(experiment, found, warm)
    injection.at("compile", standing.at.step)
    specs = experiment.train_input.specs()
    made = program.compile(specs, num_steps=experiment.p.steps_per_loop)
    parts = "" if made is None else _parts(experiment, made, progress)
    return Start(standing, facts, warm, program, parts)


def _check_same(processes: Processes, asked: Mapping[str, Any]) -> None:
    """Raises ChangedConfiguration if one process was asked for something else than the leader."""
    own = json.dumps(asked, sort_keys=True)
    leaders = processes.share("asked", own if processes.is_leader else None)
    differs = [k for k, v in json.loads(leaders).items() if v != json.loads(own)[k]]
    if processes.any(bool(differs)):
        who = f"process {processes.index}" if differs else "another process"
        what = " and ".join(differs) or "configuration or data"
        raise ChangedConfiguration(
            f"{who} has another {what} than process 0: all run the same command on the same code"
            " and data."
        )


def prepared(experiment: Experiment, progress: Progress) -> dict[str, Any]:
    """Opens all data, checks prompts by it, and returns what identifies it, by input."""
    found = {}
    for name, input in {"train": experiment.train_input, **experiment.eval_inputs}.items():
        with progress.work(f"indexing {name} data") as advance:
            input.prepare(progress=advance)
        for remark in input.remarks():
            progress.message(f"{name} data: {remark}")
        input.check_repeatable()
        found[name] = input.fingerprint()
    check_prompts(experiment)
    return found


def write_texts(request: Request, experiment: Experiment, run: RunDirectory, start: Start) -> None:
    """Writes the texts of a run: with them it has begun."""
    texts = {
        CONFIG: request.config,
        RESOLVED: text.render(start.standing.lines),
        FLAGS: request.flags,
        ENVIRONMENT: json.dumps(start.facts, indent=1) + "\n",
        "weights.txt": weight_table.render(experiment.task),
    }
    if start.parts:
        texts["program.txt"] = start.parts
    if start.warm is not None:
        texts["warm_start.txt"] = start.warm.table()
    same = environment.is_same(run.read(ENVIRONMENT) or "", start.facts)
    run.write(texts, replaced={ENVIRONMENT} if same else ())


def announce(experiment: Experiment, run: RunDirectory, start: Start, progress: Progress) -> None:
    """Says where a run begins, and renames the damaged checkpoints that were passed over."""
    progress.opened(run.path)
    if start.warm is not None:
        progress.message(f"read {start.warm.summary()}")
    for change in start.standing.changes:
        progress.message(f"changed: {change}")
    if (found := start.standing.found) is not None:
        store.quarantine_all(found.passed_over, say=progress.message)
        progress.message(f"resumed from {found.path}")
        for change in numeric_changes(found, start.metadata(experiment)):
            progress.message(f"warning: the last bits of results may change: {change}")


# ---- states ------------------------------------------------------------------------------------


def state_of(
    experiment: Experiment, init_from: Mapping[str, Any] | None, found: Checkpoint | None
) -> TrainState:
    """Returns the state of a checkpoint, or that before the first step, as it was then.

    Raises:
        UnusableSource: if the first weights would come from elsewhere now.
    """
    if found is not None:
        return restore_state(experiment.learner, found)
    warm = experiment.warm_start()
    if warm is not None and init_from and warm.origin()["sha256"] != init_from["sha256"]:
        raise UnusableSource(
            f"{init_from['path']} holds other weights than when the run began, so it cannot go back"
            " to step 0. Put them back, or train in another directory."
        )
    return _first_state(experiment, warm)


def _started(experiment: Experiment, found: Checkpoint | None, warm: Transfer | None) -> Program:
    learner = experiment.learner
    state = restore_state(learner, found) if found else _first_state(experiment, warm)
    return experiment.mesh.start(learner, state)


def _parts(experiment: Experiment, made: CompiledProgram, progress: Progress) -> str:
    """Returns what is said of a program that was cut into parts; training does not depend on it."""
    try:
        return inspection.text(inspection.report(made, experiment.task))
    except inspection.UnreadableProgram as error:
        progress.message(f"warning: {error}")
        return ""


def _first_state(experiment: Experiment, warm: Transfer | None) -> TrainState:
    return initial_state(experiment.learner, warm.value if warm else draw_every_weight)


# ---- facts -------------------------------------------------------------------------------------


def _facts(experiment: Experiment, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the run runs on; the devices' speed is measured where it will be compared."""
    speed = {}
    if experiment.step_flops():
        dtype = experiment.task.p.dtype
        peak = experiment.mesh.matmul_flops_per_second(dtype)
        speed = {"matmul_flops_per_second": peak, "matmul_dtype": dtype}
    return environment.environment(devices=experiment.mesh.device_names(), data=data, speed=speed)


def _first_weights(warm: Transfer | None, found: Checkpoint | None) -> dict[str, Any]:
    """Returns what identifies the source of the first weights; every checkpoint goes on saying."""
    known = warm.origin() if warm else found.metadata.get("init_from") if found else None
    return {} if known is None else {"init_from": known}
