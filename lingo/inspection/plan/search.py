"""Searches the ways to run an experiment on N devices for the fastest one that fits in memory."""

from __future__ import annotations

from typing import NamedTuple

from lingo.config.node.tree import walk
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment
from lingo.data.input import Input
from lingo.inspection.plan.candidate import Candidate, candidates, limits
from lingo.inspection.plan.estimate import Estimate, Estimator
from lingo.inspection.plan.hardware import Hardware
from lingo.inspection.plan.workload import Workload
from lingo.layers.flops import record_flops
from lingo.layers.stacks.micro_batches import first_shape, micro_batch_shape, with_rows
from lingo.layers.stacks.pipeline import Pipeline
from lingo.mesh.topology import MAX_MESH_DEVICES, Topology, topology
from lingo.runtimes.local import Local
from lingo.runtimes.replicated.simulated_torus import SimulatedTorus
from lingo.runtimes.sharded import Sharded

EQUAL_DIGITS = 9
"""Two step times count as equal if they are equal when rounded to this number of digits."""


class Ranking(NamedTuple):
    """All ways to run the experiment that were tried."""

    feasible: list[Estimate]  # ways that fit in memory, the fastest first
    too_large: list[Estimate]  # ways that do not fit in memory, the smallest first
    refusals: dict[str, int]  # why an experiment cannot run in a way -> the number of such ways

    @property
    def best(self) -> list[Estimate]:
        """The best way of each mesh: the fastest that fits, or the smallest if no way fits."""
        by_mesh: dict[Topology, Estimate] = {}
        for estimate in self.feasible or self.too_large:
            by_mesh.setdefault(estimate.candidate.mesh, estimate)
        return list(by_mesh.values())


def rank(workload: Workload, estimator: Estimator, hardware: Hardware, num_devices: int) -> Ranking:
    """Tries all ways to run a workload on a number of devices, and ranks them.

    Raises ParamError if no mesh of this number of devices suits the workload, or the experiment can
    run in none of these ways.
    """
    feasible, too_large, refusals = [], [], dict[str, int]()
    for candidate in candidates(workload, num_devices):
        try:
            estimate = estimator.estimate(candidate)
        except ParamError as error:
            reason = str(error).partition(":")[2].strip()
            refusals[reason] = refusals.get(reason, 0) + 1
            continue
        fits = estimate.total_bytes <= hardware.memory_bytes
        (feasible if fits else too_large).append(estimate)
    if not (feasible or too_large):
        raise ParamError(_why_none(workload, num_devices, refusals))
    feasible.sort(key=_preference)
    too_large.sort(key=lambda estimate: estimate.total_bytes)
    return Ranking(feasible, too_large, refusals)


def _preference(estimate: Estimate) -> tuple[float, ...]:
    """Returns a sort key: faster ways come first, and of equally fast ways the simpler ones."""
    way = estimate.candidate
    seconds = float(f"{estimate.step_seconds:.{EQUAL_DIGITS}g}")
    num_axes = sum(size > 1 for _, size in way.mesh.sizes)
    counts = (way.accumulation_steps, way.micro_batches, way.repeats, num_axes)
    return (seconds, *counts, estimate.total_bytes)


def rank_own(experiment: Experiment, estimator: Estimator, hardware: Hardware) -> Ranking:
    """Returns a ranking with a single way: the one in which the experiment is set to run.

    Raises ParamError if the runtime's number of devices is not known, or does not fit a pipeline.
    """
    estimate = estimator.estimate(_own(experiment))
    fits = estimate.total_bytes <= hardware.memory_bytes
    return Ranking([estimate] if fits else [], [] if fits else [estimate], {})


def _own(experiment: Experiment) -> Candidate:
    """Returns the way in which an experiment is set to run, as a candidate.

    Raises ParamError if the runtime's number of devices is not known, or does not fit a pipeline.
    """
    runtime = experiment.runtime
    if isinstance(runtime, Sharded):
        p = runtime.p
        own = Candidate(runtime.topology(), p.rules, p.shard_update, p.shard_weights)
    elif isinstance(runtime, Local):
        own = Candidate(topology({}))
    else:
        why = (
            "is a simulation" if isinstance(runtime, SimulatedTorus) else "fixes no number of them"
        )
        raise ParamError(f"--devices=N is missing: runtime={type(runtime).__name__} {why}")
    own = own._replace(accumulation_steps=experiment.p.accumulation_steps)
    for layer in (inner for inner in experiment.task.tree() if isinstance(inner, Pipeline)):
        p = layer.p
        if p.num_stages not in (1, own.num_stages):
            raise ParamError(
                f"a pipeline of {p.num_stages} stages on {own.mesh} is not predicted: give"
                f" the runtime stage={p.num_stages}, or --devices=N to find one"
            )
        _check_micro_batches(layer, experiment)
        own = own._replace(micro_batches=p.num_micro_batches, repeats=p.circular_repeats)
    return own


def _check_micro_batches(pipeline: Pipeline, experiment: Experiment) -> None:
    """Raises ParamError if a pipeline cannot split its input batch into micro-batches."""
    with record_flops() as calls:
        experiment.task.batch_flops(experiment.train_input.specs())
    if pipeline in calls:
        shape = calls[pipeline].shape
        rows = experiment.runtime.padded_batch_size(first_shape(shape)[0], experiment.learner)
        micro_batch_shape(pipeline, with_rows(shape, rows // experiment.p.accumulation_steps))


def own_rules(experiment: Experiment) -> dict[str, object]:
    """Returns the sharding rules that an experiment sets in addition to its recipe's.

    They are the runtime's fields `weight_rules` and `activation_rules`; {} if it has no such field.
    """
    if not isinstance(experiment.runtime, Sharded):
        return {}
    return {
        name: getattr(experiment.runtime.p, name) for name in ("weight_rules", "activation_rules")
    }


def _why_none(workload: Workload, num_devices: int, refusals: dict[str, int]) -> str:
    """Returns the error text that says why a workload cannot run on a number of devices."""
    if refusals:
        return f"devices: all {sum(refusals.values())} meshes of {num_devices:,} are refused: " + (
            "; ".join(refusals)
        )
    largest = limits(workload, num_devices).items()
    axes = ", ".join(f"{axis} up to {size:,}" for axis, size in largest if size > 1)
    return (
        f"devices: no mesh of {num_devices:,} divides what this experiment has:"
        f" {axes or 'nothing'}. Take another number, or more than {workload.batch_size:,} examples"
        " a step (--batch)"
    )


def least_devices(
    workload: Workload, estimator: Estimator, hardware: Hardware, num_devices: int
) -> int | None:
    """Returns the least of N, 2 N, 4 N, ... devices on which some way fits; None if none does."""
    while num_devices <= MAX_MESH_DEVICES:
        for candidate in candidates(workload, num_devices):
            try:
                estimate = estimator.estimate(candidate)
            except ParamError:
                continue
            if estimate.total_bytes <= hardware.memory_bytes:
                return num_devices
        num_devices *= 2
    return None


# ---- the size of the batch -----------------------------------------------------------------------


def batch_settings(experiment: Params, batch_size: int) -> list[str]:
    """Returns the overrides, as `--set` takes them, that set the batch size of the train input.

    If the input contains further inputs, as `MixedInput` does, the overrides also set the batch
    size of those that have one. Raises ParamError if no input has a batch size.
    """
    settings = [
        f"{path}.batch_size={batch_size}"
        for path, node in walk(experiment.train_input, "train_input")
        if issubclass(node.cls, Input) and node.__arguments__.get("batch_size") is not None
    ]
    if not settings:
        name = experiment.train_input.cls.__name__
        raise ParamError(
            f"--batch={batch_size}: {name} sets no batch_size that can be changed: leave --batch"
            " out"
        )
    return settings


def check_batch(experiment: Experiment, batch_size: int) -> None:
    """Raises ParamError if the train input makes batches of another size than `batch_size`."""
    (made,) = experiment.train_input.specs()["rows"][0]
    if made != batch_size:
        name = type(experiment.train_input).__name__
        raise ParamError(
            f"--batch={batch_size}: this flag does not set the batch of {name}, which stays"
            f" {made}: set the sizes of its inputs by --set instead"
        )
