"""The start of a run: inspects the directory, opens the data, and compiles the program.

status = inspect_run(run)                # checkpoint, counters, what has changed
start = start_run(run, status)           # opens the data, compiles the program
write_texts(run, start)                  # from here on the run exists
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.errors import DamagedCheckpoint
from lingo.checkpoints.run_counters import RunCounters, read_counters
from lingo.checkpoints.sources.transfer import Transfer
from lingo.checkpoints.store import share_checkpoint
from lingo.config import source_record, text
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.config.roots.user_line import is_lingos
from lingo.contract import Experiment
from lingo.data.array_spec import task_mark
from lingo.inspection import program as inspection
from lingo.inspection import weight_table
from lingo.inspection.memory import check_step, step_memory
from lingo.learner.placement import Placement
from lingo.learner.state import TrainState, restore_state
from lingo.learner.step import graph_of, predict_batch
from lingo.learner.task import Task
from lingo.learner.task_check import check_padding, check_sums
from lingo.processes.processes import Processes
from lingo.runtimes.program import Program, explain_program_errors
from lingo.storage import injection
from lingo.trainer.changes import (
    ChangedConfiguration,
    check_changes,
    check_data,
    check_source,
    digest,
    latest_checkpoint,
    numeric_changes,
)
from lingo.trainer.directory import environment
from lingo.trainer.directory.notes import NOTES, updated_notes
from lingo.trainer.directory.run_directory import (
    CLASSES,
    CONFIG,
    ENVIRONMENT,
    FLAGS,
    RESOLVED,
    SOURCE,
)
from lingo.trainer.evaluation import best
from lingo.trainer.evaluation.answers import check_answers
from lingo.trainer.evaluation.evaluate import trace_evaluations
from lingo.trainer.evaluation.generate import check_prompts
from lingo.trainer.first_state import first_state
from lingo.trainer.followed import check_followed
from lingo.trainer.progress import Progress, header
from lingo.trainer.request import Run

_RECORDED = ("data", "versions", "numerics", "devices", "init_from", SOURCE)
"""The parts of the environment that are also in each checkpoint."""


class RunStatus(NamedTuple):
    """What a run directory holds, compared with the requested run."""

    lines: list[text.Line]  # the resolved text of the requested configuration
    checkpoint: Checkpoint | None  # the checkpoint to resume from; None starts at step 0
    changes: list[text.Change]  # fields and code files in which the directory's run differs
    counters: RunCounters


class Start(NamedTuple):
    """A run that is ready for its first step."""

    status: RunStatus
    environment: Mapping[str, Any]  # the content of environment.json
    warm: Transfer | None  # the weights read by `init_from`; None if random or from a checkpoint
    program: Program
    program_text: str  # report on a mesh's communication and memory; "" without a mesh
    graph: tf.Graph | None  # a step's graph; None if the run resumes unchanged after an orderly end

    def metadata(self, experiment: Experiment) -> dict[str, Any]:
        """Returns the metadata that all checkpoints of the run have in common."""
        known = {key: self.environment[key] for key in _RECORDED if key in self.environment}
        return {"config": digest(self.status.lines), "seed": experiment.p.seed} | known

    def peak_flops_per_second(self) -> float:
        """Returns the measured matrix-product peak of all devices; 0 if it was not measured."""
        return self.environment.get("matmul_flops_per_second", 0.0)


def inspect_run(run: Run, *, unreadable: Sequence[DamagedCheckpoint] = ()) -> RunStatus:
    """Returns the status of a directory, and removes a killed process's leftovers.

    If there are several processes, the leader chooses the checkpoint and shares it. `unreadable` is
    as for `store.latest`.

    Raises NoUsableCheckpoint if the directory has or had checkpoints and none of them can be used,
    and ChangedConfiguration if the directory's run has another configuration or other code.
    """
    directory, request = run.directory, run.request
    lines = text.resolve(request.params)
    found = share_checkpoint(
        run.processes,
        directory.checkpoints,
        lambda: latest_checkpoint(directory, unreadable=unreadable),
    )
    if run.processes.is_leader:  # not reached if no checkpoint is usable: leftovers may help then
        store.clear_leftovers(directory.checkpoints)
    changes = check_changes(directory, lines, found, allow_change=request.allow_change)
    changes += check_source(directory, run.request.source, found, allow_change=request.allow_change)
    counters = read_counters(found.step, found.metadata) if found else RunCounters()
    return RunStatus(lines, found, changes, counters)


def start_run(run: Run, status: RunStatus) -> Start:
    """Finds initial weights, opens the data, makes the first state, and compiles the program.

    Raises ChangedConfiguration if the directory's run has other data, or if a process has another
    configuration, data or code than the leader. Also raises CheckpointMismatch, UnusableSource,
    DataError and ParamError.
    """
    experiment, found = run.experiment, status.checkpoint
    warm = None if found else experiment.warm_start()  # first: indexing data may take minutes
    data = prepare_data(experiment, run.progress)
    if found is not None and not run.request.allow_change:
        check_data(run.directory, data, found)
    code = {name: file.sha256 for name, file in run.request.source.items()}
    request = {"configuration": digest(status.lines), "data": data, "code": code}
    _check_same(run.processes, request)
    specs = experiment.train_input.specs()
    state = restore_state(experiment.learner, found) if found else first_state(run, warm)
    with run.progress.show_time("placing the state on the devices"):
        program = _start_program(experiment, state)
    program_text = ""
    with run.progress.show_time("compiling a step"):
        compiled = program.compile(specs, num_steps=experiment.p.steps_per_loop)
        if compiled is not None:
            try:
                program_text = inspection.text(inspection.report(compiled, experiment.task))
            except inspection.UnreadableProgram as error:
                run.progress.message(f"warning: {error}")
    injection.at("compile", status.counters.step)
    was_killed = (last := run.directory.status()) is not None and last.state == "running"
    is_new = found is None or bool(status.changes)
    graph = program.graph(specs) if is_new or was_killed else None
    if graph is not None:
        memory = step_memory(experiment, graph, num_processes=run.processes.count)
        check_step(memory, tell=run.progress.message, was_killed=was_killed)
    if is_new:
        _check_tasks(experiment)
    check_evaluations(experiment)
    origin = warm.origin() if warm else found.metadata.get("init_from") if found else None
    known = _environment(experiment, data, origin)
    if used := source_record.merge(run.directory.read_source(), run.request.source):
        known |= {SOURCE: source_record.to_json(used)}
    return Start(status, known, warm, program, program_text, graph)


def _check_tasks(experiment: Experiment) -> None:
    """Raises ParamError if the sums of a task of the user's are wrong, as `task_check` says."""
    place = Placement(compiled=experiment.runtime.compiles)
    for name, data in experiment.train_input.inputs_by_task().items():
        own = experiment.learner.select([task_mark(name)])
        check_sums(own, data.specs(), place)
        check_padding(own, data)


def _start_program(experiment: Experiment, state: TrainState) -> Program:
    with explain_program_errors("placing the state on the devices"):
        return experiment.runtime.start(experiment.learner, state)


def _check_same(processes: Processes, request: Mapping[str, Any]) -> None:
    """Raises ChangedConfiguration, in all processes, if a request differs from the leader's."""
    own = json.dumps(request, sort_keys=True)
    leaders = processes.share("asked", own if processes.is_leader else None)
    differs = [k for k, v in json.loads(leaders).items() if v != json.loads(own)[k]]
    if processes.any(bool(differs)):
        who = f"process {processes.index}" if differs else "another process"
        what = " and ".join(differs) or "configuration, data or code"
        raise ChangedConfiguration(
            f"{who} has another {what} than process 0: all processes must run the same command on"
            " the same code and data."
        )


def check_evaluations(experiment: Experiment) -> None:
    """Checks before the first step that evaluations would not fail.

    Metrics, `evaluate.metric`, prompts and answers are checked. Raises ParamError for a problem,
    MissingPackage for a package that is not installed.
    """
    _trace_predictions(experiment)
    traced = trace_evaluations(experiment)
    best.check_metric(experiment, traced)
    check_followed(experiment, traced)
    check_prompts(experiment)
    if experiment.evaluate.answers is not None:
        check_answers(experiment)


def _trace_predictions(experiment: Experiment) -> None:
    """Raises ParamError if a user's own `predict` fails, or returns no valid predictions."""
    task = experiment.task
    if type(task).predict is Task.predict or is_lingos(type(task)):
        return

    def predict(state: TrainState, batch: Mapping[str, Any]) -> Any:
        return predict_batch(task, state.weights, state.state, batch)

    graph_of(predict, experiment.learner, experiment.train_input.specs())


def prepare_data(experiment: Experiment, progress: Progress) -> dict[str, Any]:
    """Opens all data, and returns the fingerprint of each input, by name."""
    fingerprints = {}
    for name, input in {"train": experiment.train_input, **experiment.eval_inputs}.items():
        with progress.work(f"indexing {name} data") as advance:
            input.prepare(progress=advance)
        for remark in input.remarks():
            progress.message(f"{name} data: {remark}")
        input.check_specs()
        input.check_size()
        if name == "train" and (size := input.num_rows(0)) > (num := input.num_examples()):
            progress.message(
                f"warning: {name} data: a batch of {size:,} examples has some of them several"
                f" times, because there are only {num:,}"
            )
        input.check_repeatable()
        fingerprints[name] = input.check_fingerprint()
        _check_classes(name, input.class_names, experiment.train_input.class_names)
    _check_task_classes(experiment)
    if experiment.counts_epochs:
        experiment.optimizer.check_rates(experiment.length.steps)
    return fingerprints


def _check_classes(name: str, names: tuple[str, ...], of_training: tuple[str, ...]) -> None:
    """Raises ParamError if labels of the input `name` have other names than in training."""
    if of_training and names != of_training[: len(names)]:
        raise ParamError(
            f"{name} has the classes {', '.join(names):.80}, but training has"
            f" {', '.join(of_training):.80}: a label needs the same name in both, so give both one"
            " list of names, such as ImageFolder's classes=FILE"
        )


def _check_task_classes(experiment: Experiment) -> None:
    """Raises ParamError if the task names labels in another way than the training data does."""
    of_data = experiment.train_input.class_names
    of_task = tuple(getattr(experiment.task.p, "class_names", ()))
    if of_data and of_task != of_data[: len(of_task)]:
        raise ParamError(
            f"task.class_names has {', '.join(of_task):.80}, but labels of the training data mean"
            f" {', '.join(of_data):.80}, in this order: leave task.class_names out"
        )


def _environment(
    experiment: Experiment, data: Mapping[str, Any], init_from: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the content of environment.json; measures devices' speed if FLOPs are counted."""
    speed = {}
    if experiment.step_flops():
        dtype = experiment.task.p.dtype
        peak = experiment.runtime.matmul_flops_per_second(dtype)
        speed = {"matmul_flops_per_second": peak, "matmul_dtype": dtype}
    devices = experiment.runtime.device_names()
    known = environment.environment(devices=devices, data=data, speed=speed)
    return known if init_from is None else known | {"init_from": init_from}


def write_texts(run: Run, start: Start) -> None:
    """Writes the text files of a run; from then on the run exists."""
    texts = {
        CONFIG: run.request.config,
        RESOLVED: text.render(start.status.lines),
        FLAGS: run.request.flags,
        ENVIRONMENT: json.dumps(start.environment, indent=1) + "\n",
        "weights.txt": weight_table.render(run.experiment.task),
    }
    if run.request.note is not None or run.request.tags:
        old = run.directory.read(NOTES)
        texts[NOTES] = updated_notes(old, run.request.note, run.request.tags).text
    if names := run.experiment.class_names:
        texts[CLASSES] = json.dumps(names, indent=1) + "\n"
    if start.program_text:
        texts["program.txt"] = start.program_text
    if start.warm is not None:
        texts["warm_start.txt"] = start.warm.table()
    same = environment.is_same(run.directory.read(ENVIRONMENT) or "", start.environment)
    run.directory.write(texts, source=run.request.source, replaced={NOTES, *[ENVIRONMENT] * same})


def print_start(run: Run, start: Start) -> None:
    """Shows from what a run starts, and renames the damaged checkpoints that were skipped."""
    progress = run.progress
    for line in header(run.experiment, start.environment["data"]["train"], run.request.origin):
        progress.message(line)
    progress.show_directory(run.directory.path)
    for line in run.experiment.runtime.advice(run.experiment.task.p.dtype):
        progress.message(line)
    if start.warm is not None:
        progress.message(f"read {start.warm.summary()}")
    for change in start.status.changes:
        progress.message(f"changed: {change}")
        if change.path in ("max_steps", "max_epochs") and run.experiment.optimizer.ends_with_run():
            progress.message("changed: the learning rate, whose schedule ends with the run")
    if (found := start.status.checkpoint) is not None:
        store.quarantine_all(found.later_errors, report=progress.message)
        progress.message(f"resumed from {found.path}")
        for change in numeric_changes(found, start.metadata(run.experiment)):
            progress.message(f"warning: the last bits of results may change: {change}")
