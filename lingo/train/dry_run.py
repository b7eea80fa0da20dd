"""A dry run: all that happens before the first step, without a tensor, a file or a directory.

The data is opened (its index may be made and kept for later), the training and evaluation step are
traced symbolically, and what the directory holds is compared with what is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from lingo.config import text
from lingo.data.input import Input
from lingo.train.experiment import Experiment
from lingo.train.progress import Progress
from lingo.train.record.checkpoint import Checkpoint
from lingo.train.record.resume import check_changes, check_data, latest_checkpoint
from lingo.train.record.run_directory import RunDirectory
from lingo.train.run import Request, prepared
from lingo.train.state import Learner, named_shapes
from lingo.train.trace import Traced, trace

_FLOAT_BYTES = 4  # of everything that is trained or kept, whatever it is computed in


def dry_run(request: Request, run: RunDirectory | None, *, allow_change: bool = False) -> str:
    """Returns what a run would be, a line a fact.

    Args:
        request: what to train.
        run: where; None to leave that open.
        allow_change: as for `train`.

    Raises:
        ParamError, ChangedConfiguration, NoUsableCheckpoint, CheckpointMismatch, DataError: as
            `train` would.
    """
    experiment: Experiment = request.params.build()
    found = latest_checkpoint(run) if run is not None else None
    changes: list[text.Change] = []
    if run is not None:
        lines = text.resolve(request.params)
        changes = check_changes(run, lines, found, allow_change=allow_change)
    with Progress(max_steps=experiment.p.max_steps) as progress:
        data = prepared(experiment, progress)
    if run is not None and found is not None:
        _check_checkpoint(experiment, run, found, data, allow_change=allow_change)
    facts = [*_sizes(experiment, trace(experiment)), *_inputs(experiment, data)]
    facts += [("changed", str(change)) for change in changes]
    facts.append(("start", _start(found, experiment.p.max_steps)))
    width = max(len(name) for name, _ in facts)
    return "".join(f"{name:{width}}  {fact}\n" for name, fact in facts)


def _check_checkpoint(
    experiment: Experiment,
    run: RunDirectory,
    found: Checkpoint,
    data: Mapping[str, object],
    *,
    allow_change: bool,
) -> None:
    if not allow_change:
        check_data(run, data, found)
    shapes = named_shapes(experiment.learner)
    found.require({name: (shape, "float32") for name, shape in shapes.items()})


def _start(found: Checkpoint | None, max_steps: int) -> str:
    where = "from step 0" if found is None else f"from {found.path}"
    return f"{where}, to step {max_steps}"


def _sizes(experiment: Experiment, traced: Traced) -> Iterator[tuple[str, str]]:
    """Yields what the model takes: numbers, memory, operations."""
    kinds = memory(experiment.learner)
    yield "parameters", f"{kinds['weights'] // _FLOAT_BYTES:,}"
    for kind, size in kinds.items():
        yield kind, f"{_short(size, 1024, ('B', 'KiB', 'MiB', 'GiB', 'TiB'))} in float32"
    flops = experiment.step_flops()
    said = _short(flops, 1000, ("", "k", "M", "G", "T", "P", "E")) if flops else "not counted"
    yield "FLOPs a step", f"{said}, three times the forward pass, in {experiment.task.p.dtype}"
    for name, graph in zip(("training", "evaluation"), traced, strict=True):
        yield f"{name} graph", f"{len(graph.get_operations()):,} operations"


def memory(learner: Learner) -> dict[str, int]:
    """Returns the bytes of weights, optimizer slots and moving statistics, over all devices."""
    slots = [slot.shape for slots in learner.slots().values() for slot in slots.values()]
    shapes = {
        "weights": [weight.shape for weight in learner.weights().values()],
        "slots": slots,
        "statistics": [spec.program_shape for spec in learner.task.states().values()],
    }
    return {k: _FLOAT_BYTES * sum(map(math.prod, each)) for k, each in shapes.items()}


def _inputs(experiment: Experiment, data: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yields the batches of every input, and where they come from."""
    yield "train batch", _specs(experiment.train_input)
    yield "train data", str(data["train"])
    for name, input in experiment.eval_inputs.items():
        yield f"{name} batch", f"{_specs(input)}; {input.num_batches():,} batches"
        yield f"{name} data", str(data[name])


def _specs(input: Input) -> str:
    specs = input.specs().items()
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, (shape, dtype) in specs)


def _short(value: float, base: int, units: tuple[str, ...]) -> str:
    """Returns a number with a unit that leaves one to three digits before the point."""
    power = min(int(math.log(value, base)), len(units) - 1) if value else 0
    number = f"{value / base**power:.1f}" if power else str(value)
    return f"{number} {units[power]}".rstrip()
