"""A dry run: everything before the first step, without making a tensor or a run directory.

It opens the data (and may build and keep its index), traces the training and evaluation steps
symbolically, and compares the directory's run with the requested run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from lingo.config import text
from lingo.contract import Experiment
from lingo.data.input import Input
from lingo.inspection.memory import kept_bytes, size
from lingo.inspection.trace import Traced, trace
from lingo.learner.state import FLOAT_BYTES, named_shapes, num_bytes
from lingo.runtimes.layout import bytes_per_device
from lingo.trainer.changes import check_changes, check_data, check_source, latest_checkpoint
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.progress import Progress
from lingo.trainer.request import Request
from lingo.trainer.start import check_evaluations, prepare_data

_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")


def dry_run(request: Request, run: RunDirectory | None) -> str:
    """Describes the requested run, one fact per line, and its differences from the directory's run.

    Raises the errors that `train` would raise before its first step.
    """
    experiment: Experiment = request.params.build()
    experiment.check_weights()
    found = latest_checkpoint(run) if run is not None else None
    changes: list[text.Change] = []
    if run is not None:
        lines = text.resolve(request.params)
        changes = check_changes(run, lines, found, allow_change=request.allow_change)
        changes += check_source(run, request.source, found, allow_change=request.allow_change)
    warm = None if found else experiment.warm_start()
    with Progress(experiment.length) as progress:
        data = prepare_data(experiment, progress)
    check_evaluations(experiment)
    if run is not None and found is not None:
        if not request.allow_change:
            check_data(run, data, found)
        shapes = named_shapes(experiment.learner)
        found.require({name: (shape, "float32") for name, shape in shapes.items()})
    facts = [*_sizes(experiment, trace(experiment)), *_inputs(experiment, data)]
    facts += [("first weights", warm.summary())] if warm else []
    facts += [("changed", str(change)) for change in changes]
    where = "step 0" if found is None else found.path
    facts.append(("start", f"from {where}, to step {experiment.length.steps}"))
    width = max(len(name) for name, _ in facts)
    return "".join(f"{name:{width}}  {fact}\n" for name, fact in facts)


def _sizes(experiment: Experiment, traced: Traced) -> Iterator[tuple[str, str]]:
    """Yields the model's parameter count, memory, FLOPs per step and graph sizes."""
    kinds = num_bytes(experiment.learner)
    yield "parameters", f"{kinds['weights'] // FLOAT_BYTES:,}"
    for kind, number in kinds.items():
        yield kind, f"{size(number)} in float32"
    kept = size(kept_bytes(traced.train))
    yield "activations", f"about {kept}, which the gradient of a batch reads"
    yield from _on_each_device(experiment)
    flops = experiment.step_flops()
    counted = _short(flops) if flops else "not counted"
    passed = "three times the forward pass of the largest batch"
    yield "FLOPs per step", f"{counted}, {passed}, in {experiment.task.p.dtype}"
    for name, graph in zip(("training", "evaluation"), traced, strict=True):
        yield f"{name} graph", f"{len(graph.get_operations()):,} operations"


def _on_each_device(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yields the bytes per device of a mesh, padding included."""
    layout = experiment.runtime.layout(experiment.learner)
    if layout is not None:
        found = bytes_per_device(experiment.learner, layout).items()
        sizes = (f"{kind} {size(kept.per_device)}" for kind, kept in found)
        each = f"on each of {layout.mesh.num_devices} devices ({layout.mesh})"
        yield "runtime", f"{each}: {', '.join(sizes)}"


def _inputs(experiment: Experiment, data: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yields the batch shapes and the data fingerprint of every input."""
    yield "train batch", _specs(experiment.train_input)
    yield "train data", str(data["train"])
    for name, input in experiment.eval_inputs.items():
        yield f"{name} batch", f"{_specs(input)}; {input.num_batches():,} batches"
        yield f"{name} data", str(data[name])


def _specs(input: Input) -> str:
    specs = input.specs().items()
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, (shape, dtype) in specs)


def _short(value: float) -> str:
    """Returns a number with an SI suffix and one to three digits before the decimal point."""
    power = min(int(math.log(value, 1000)), len(_THOUSANDS) - 1)
    return f"{value / 1000**power:.1f} {_THOUSANDS[power]}".rstrip()
