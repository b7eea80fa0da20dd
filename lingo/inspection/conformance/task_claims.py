"""What every task promises: sums over examples, and a step that can be resumed.

Axes: B examples.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lingo.checkpoints import store
from lingo.checkpoints.retention import Retention
from lingo.config.lazy import tf
from lingo.contract import Experiment
from lingo.inspection.conformance.claim import (
    Broken,
    NotChecked,
    largest_of,
    own_line,
    require_same,
)
from lingo.inspection.conformance.layer_call import (
    Engine,
    LayerValues,
    as_tensors,
    by_name,
    run,
)
from lingo.inspection.conformance.layer_claims import FLOOR, ROUNDING, check_gradients
from lingo.layers import context
from lingo.learner.padding_check import num_examples, padding_problem
from lingo.learner.state import initial_state, load_arrays, named_tensors, restore_state
from lingo.learner.step import evaluate_batch, find_frozen, normalize_losses
from lingo.learner.task import find_owner
from lingo.ops import random

NUM_STEPS = 20


class TaskExample(NamedTuple):
    """A task with weights, and some examples of a batch.

    Attributes:
        experiment: a built experiment on one device.
        values: weights and states of its task.
        batch: {name: [B, ...]} arrays, with `rows`.
        unit: the number of examples that parts of a batch are multiples of.
    """

    experiment: Experiment
    values: LayerValues
    batch: Mapping[str, np.ndarray]
    unit: int

    @property
    def size(self) -> int:
        """B."""
        return len(self.batch["rows"])


class _Sums(NamedTuple):
    """What a step sums over examples: scalars by name, and gradients by weight."""

    scalars: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    without_gradient: list[str]


def task_claims(example: TaskExample) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields each claim about a task, and its check."""
    checks = {
        "every weight has a gradient": _check_gradient,
        "eager = graph = XLA": _check_engines,
        "losses and denominators of uneven parts add up to the whole": _check_parts,
        "metrics of uneven parts add up to the whole": _check_metrics,
        "examples of weight 0 change nothing": _check_padding,
        f"{NUM_STEPS} steps, saved and resumed after {NUM_STEPS // 2}, = {NUM_STEPS} steps": (
            _check_resumed
        ),
    }
    for text, check in checks.items():
        yield text, functools.partial(check, example)


# ---- one step ------------------------------------------------------------------------------------


def _check_gradient(example: TaskExample) -> None:
    frozen = find_frozen(example.experiment.learner)
    missing = [w for w in _step_sums(example).without_gradient if w not in frozen]
    if missing:
        layer, _ = find_owner(example.experiment.task, missing[0])
        raise Broken(
            f"the loss does not depend on the weight {', '.join(missing)}: use it in the layer's"
            " call, without tf.stop_gradient, or let the optimizer ByPath freeze it",
            where=own_line(type(layer)),
        )


def _check_engines(example: TaskExample) -> None:
    eager, graph, xla = (_step_sums(example, engine=e) for e in ("eager", "graph", "xla"))
    _check_sums(eager, graph, "as a graph, not eagerly")
    _check_sums(graph, xla, "compiled by XLA")


def _check_sums(plain: _Sums, other: _Sums, what: str) -> None:
    floor = FLOOR * largest_of([*plain.scalars.values()])
    require_same(plain.scalars, other.scalars, what=what, tolerance=ROUNDING, floor=floor)
    check_gradients(plain.gradients, other.gradients, what=what)


def _step_sums(
    example: TaskExample,
    *,
    engine: Engine = "eager",
    batch: Mapping[str, np.ndarray] | None = None,
    denominators: Mapping[str, Any] | None = None,
) -> _Sums:
    """Returns what a part of the batch adds to a step; the whole batch if None is given.

    `denominators` are those of the whole batch, term -> float32 scalar.
    """
    task, values = example.experiment.task, example.values
    batch = example.batch if batch is None else batch
    names: list[str] = []

    tensors, unused = as_tensors(dict(batch)), set[str]()
    fields = {"state": values.state, "training": True, "key": random.root_key(1)}
    fields |= {"rows": tensors["rows"], "compiled": engine == "xla", "unused_weights": unused}

    def step() -> Any:
        weights = tf.nest.map_structure(tf.identity, values.weights)
        own = task.loss_denominators(tensors)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            sums, sides = context.apply(task, weights, tensors, method="loss", call=fields)
            losses = normalize_losses(task, sums, sides.losses, denominators or own)
        gradients = tape.gradient(losses["total"], weights)
        named = {f"the denominator {name!r}": value for name, value in own.items()}
        named |= {f"the loss {name!r}": value for name, value in {**sums, **sides.losses}.items()}
        names[:] = named
        return [*named.values()], gradients

    scalars, gradients = run(step, engine)
    return _Sums(
        {name: np.asarray(value) for name, value in zip(names, scalars, strict=True)},
        by_name({k: tf.convert_to_tensor(v) for k, v in gradients.items() if v is not None}),
        sorted(unused.union(where for where, value in gradients.items() if value is None)),
    )


# ---- parts ---------------------------------------------------------------------------------------


def _check_parts(example: TaskExample) -> None:
    task = example.experiment.task
    if any(layer.batch_requirements().examples_counted == 0 for layer in task.tree()):
        raise NotChecked(
            "a layer takes the statistics of all examples of a call (a BatchNorm without"
            " statistics_over)"
        )
    parts = _parts(example)
    denominators = task.loss_denominators(as_tensors(dict(example.batch)))
    whole, *sums = (
        _step_sums(example, batch=batch, denominators=denominators)
        for batch in (example.batch, *parts)
    )
    _check_sums(whole, _add(sums), _describe_parts(parts))


def _check_metrics(example: TaskExample) -> None:
    parts = _parts(example)
    whole, *states = (_metric_states(example, batch) for batch in (example.batch, *parts))
    total = {name: sum(state[name] for state in states) for name in whole}
    what, floor = _describe_parts(parts), FLOOR * largest_of([*whole.values()])
    require_same(whole, _as_given(total, whole), what=what, tolerance=ROUNDING, floor=floor)


def _check_padding(example: TaskExample) -> None:
    task, values = example.experiment.task, example.values
    if num_examples(task) > example.size:
        raise NotChecked(f"layers compute all {example.size} examples of a batch together")
    frozen = find_frozen(example.experiment.learner)
    problem = padding_problem(task, values.weights, values.state, example.batch, frozen=frozen)
    if problem:
        raise Broken(problem.splitlines()[0].partition(": ")[2])


def _describe_parts(parts: Sequence[Mapping[str, np.ndarray]]) -> str:
    return f"parts of {' and '.join(str(len(part['rows'])) for part in parts)} rows together"


def _parts(example: TaskExample) -> list[dict[str, np.ndarray]]:
    """Returns two parts of the batch, the first the smallest that there can be."""
    if example.size < 2 * example.unit:
        raise NotChecked(f"the {example.size} examples of a batch are computed as one")
    cut = example.unit
    return [
        {name: value[rows] for name, value in example.batch.items()}
        for rows in (slice(0, cut), slice(cut, None))
    ]


def _add(sums: list[_Sums]) -> _Sums:
    first = sums[0]
    scalars = {name: sum(one.scalars[name] for one in sums) for name in first.scalars}
    gradients = {name: sum(one.gradients[name] for one in sums) for name in first.gradients}
    return _Sums(_as_given(scalars, first.scalars), _as_given(gradients, first.gradients), [])


def _as_given(sums: Mapping[str, Any], wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, wanted[name].dtype) for name, value in sums.items()}


def _metric_states(example: TaskExample, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    values, task = example.values, example.experiment.task
    states = evaluate_batch(task, values.weights, values.state, as_tensors(dict(batch)))
    return {
        f"{part!r} of the metric {name!r}": np.asarray(value)
        for name, state in states.items()
        for part, value in state.items()
    }


# ---- steps ---------------------------------------------------------------------------------------


def _check_resumed(example: TaskExample) -> None:
    experiment, half = example.experiment, NUM_STEPS // 2
    whole = _train(experiment, example.size, initial_state(experiment.learner), NUM_STEPS)
    state = _train(experiment, example.size, initial_state(experiment.learner), half)
    again = experiment.p.build()  # as a new process does
    with tempfile.TemporaryDirectory(prefix="lingo-check-") as folder:
        tensors = named_tensors(experiment.learner, state)
        store.save(Path(folder), step=half, tensors=tensors, metadata={}, retention=Retention(1))
        found = store.find(Path(folder), half, of=Path(folder))
        resumed = load_arrays(restore_state(again.learner, found))
    again.train_input.prepare()
    state = _train(again, example.size, resumed, NUM_STEPS - half)
    differ = [
        name
        for (name, a), (_, b) in zip(
            named_tensors(experiment.learner, whole),
            named_tensors(again.learner, state),
            strict=True,
        )
        if np.asarray(a).tobytes() != np.asarray(b).tobytes()
    ]
    if differ:
        more = f" and {len(differ) - 1} others" if len(differ) > 1 else ""
        raise Broken(
            f"after step {NUM_STEPS} {differ[0]}{more} differ: the step or the input depends on"
            " something that no checkpoint holds"
        )


def _train(experiment: Experiment, size: int, state: Any, num_steps: int) -> Any:
    """Returns the state after some steps on `size` examples each, in a program of its own."""
    learner = experiment.learner._replace(accumulation_steps=1)
    program = experiment.runtime.start(learner, state)
    first = int(np.asarray(state.step))
    for step in range(first, first + num_steps):
        batch = experiment.train_input.batch(step, rows=slice(0, size))
        program.train({name: np.asarray(value)[None] for name, value in batch.items()})
    return program.state()
