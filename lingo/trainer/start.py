"""The start of a run: it inspects the directory, opens the data, and compiles the program.

standing = look(request, run)                   # checkpoint, counters, what has changed
start = begin(experiment, run, standing)        # opens the data, compiles the program
write_texts(request, experiment, run, start)    # from here on the run exists
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
from lingo.learner.state import TrainState, initial_state, restore_state
from lingo.processes.processes import Processes
from lingo.runtimes.compiled_program import CompiledProgram
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

_RECORDED = ("data", "versions", "numerics", "devices", "init_from")  # facts in checkpoints


class Standing(NamedTuple):
    """The status of a directory in relation to the requested run.

    Attributes:
        lines: the resolved text of the requested configuration.
        found: the checkpoint to resume from, or None.
        changes: fields in which the directory's run differs from the requested one.
        at: the run's counters.
    """

    lines: list[text.Line]
    found: Checkpoint | None
    changes: list[text.Change]
    at: RunCounters


class Start(NamedTuple):
    """A run that is ready for its first step.

    Attributes:
        standing: the status of its directory.
        facts: the environment, which is the content of environment.json.
        warm: the source of the initial weights; None if they are random, or from a checkpoint.
        program: the compiled program.
        parts: a text on what the devices of a mesh exchange and hold; "" without a mesh.
    """

    standing: Standing
    facts: Mapping[str, Any]
    warm: Transfer | None
    program: Program
    parts: str = ""

    def metadata(self, experiment: Experiment) -> dict[str, Any]:
        """Returns the metadata that every checkpoint of the run records."""
        known = {key: self.facts[key] for key in _RECORDED if key in self.facts}
        return {"config": digest(self.standing.lines), "seed": experiment.p.seed} | known

    def peak_flops_per_second(self) -> float:
        """Returns the measured peak of matrix products of all devices; 0 if not measured."""
        return self.facts.get("matmul_flops_per_second", 0.0)


def look(
    request: Request, run: RunDirectory, processes: Processes, *, allow_change: bool
) -> Standing:
    """Returns the status of a directory, and removes what a killed process left there.

    If there are several processes, the leader chooses the checkpoint and shares it.

    Raises:
        NoUsableCheckpoint: if there are or were checkpoints, and none can be used.
        ChangedConfiguration: if the directory's run has another configuration.
    """
    lines = text.resolve(request.params)
    found = share_checkpoint(processes, run.checkpoints, lambda: latest_checkpoint(run))
    if processes.is_leader:  # not reached if no checkpoint is usable: leftovers may help then
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
    """Finds initial weights, opens the data, makes the first state, and compiles the program.

    Raises:
        ChangedConfiguration: if the directory's run has other data, or a process has another
            configuration or other data than the leader.
        CheckpointMismatch, UnusableSource, DataError, ParamError: as their names say.
    """
    found = standing.found
    warm = None if found else experiment.warm_start()  # first: indexing data may take minutes
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
    """Raises ChangedConfiguration if a process has another request than the leader."""
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
    """Opens all data, checks the prompts, and returns the fingerprint of each input, by name."""
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
    """Writes the text files of a run; from then on the run exists."""
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
    """Shows where a run starts, and renames the damaged checkpoints that were skipped."""
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
    """Returns the state of a checkpoint, or the run's initial state if there is none.

    Raises:
        UnusableSource: if the source of the initial weights has changed since the run began.
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
    return experiment.runtime.start(learner, state)


def _parts(experiment: Experiment, made: CompiledProgram, progress: Progress) -> str:
    """Returns the report on a compiled program; "" with a warning if it cannot be read."""
    try:
        return inspection.text(inspection.report(made, experiment.task))
    except inspection.UnreadableProgram as error:
        progress.message(f"warning: {error}")
        return ""


def _first_state(experiment: Experiment, warm: Transfer | None) -> TrainState:
    return initial_state(experiment.learner, warm.value if warm else None)


# ---- facts -------------------------------------------------------------------------------------


def _facts(experiment: Experiment, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the environment; measures the devices' speed if the FLOPs of a step are known."""
    speed = {}
    if experiment.step_flops():
        dtype = experiment.task.p.dtype
        peak = experiment.runtime.matmul_flops_per_second(dtype)
        speed = {"matmul_flops_per_second": peak, "matmul_dtype": dtype}
    return environment.environment(
        devices=experiment.runtime.device_names(), data=data, speed=speed
    )


def _first_weights(warm: Transfer | None, found: Checkpoint | None) -> dict[str, Any]:
    """Returns what identifies the source of the initial weights, from checkpoint to checkpoint."""
    known = warm.origin() if warm else found.metadata.get("init_from") if found else None
    return {} if known is None else {"init_from": known}
