"""Checks that an experiment's input, layers and task keep the contracts of lingo.

Everything is computed in float32, on one device, with a few examples of the first batch:

    input:   batches fit the specs, and are the same whenever they are made
    layers:  one layer of each class, with the arguments of the task's first call of this layer
    task:    sums are additive over examples; 20 interrupted steps equal 20 steps

If the experiment has layer classes from outside lingo, only these are checked; otherwise all are.

Axes: B examples.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lingo.checkpoints import store
from lingo.checkpoints.store import Retention
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.config.roots.user_line import is_lingos
from lingo.contract import Experiment
from lingo.data.input import Input, array_content
from lingo.inspection.conformance import claim, layer_call, layer_claims
from lingo.inspection.conformance.claim import Broken, Claim, NotChecked, check_claim
from lingo.layers.layer import Layer
from lingo.layers.stacks.stack import Chain, Stack
from lingo.learner import state as train_state
from lingo.learner import task_check
from lingo.learner.step import find_frozen, graph_of, normalize_losses
from lingo.learner.task import Batch, find_owner
from lingo.ops import random
from lingo.runtimes.local import Local

_NUM_EXAMPLES = 4  # least number of examples that the task computes, if the batch has as many
_NUM_STEPS = 20

_Claims = Iterator[tuple[str, Callable[[], None]]]
"""Pairs (text of a claim, function that checks the claim)."""


def check_contract(params: Params) -> Iterator[Claim]:
    """Yields each claim about an experiment, with its outcome, as soon as it is checked.

    The checks compute in float32 on one device, without the experiment's runtime. `params` are not
    changed. TensorFlow's graph optimizers are turned off in this process, as training does, too.
    Raises ParamError if the experiment cannot be built, and DataError if its data cannot be read.
    """
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # as `Local`
    params = params.copy().set(runtime=Local.params(), init_from=None)
    params.all(Layer).set(dtype="float32")
    experiment, again = params.build(), params.build()
    inputs = {"train_input": (experiment.train_input, again.train_input)} | {
        f"eval_inputs[{name!r}]": (input, again.eval_inputs[name])
        for name, input in experiment.eval_inputs.items()
    }
    for name, (input, other) in inputs.items():
        for one in (input, other):
            one.prepare()
        subject = f"{name} ({type(input).__name__})"
        for text, check in _input_claims(input, other):
            yield check_claim(text, subject, check, where=claim.own_line(type(input)))
    yield from _check_task(experiment)


# ---- inputs --------------------------------------------------------------------------------------


def _input_claims(input: Input, again: Input) -> _Claims:
    """Yields each claim about an input, and its check; `again` is built from the same params."""
    last = 2 if input.p.repeat else min(2, input.num_batches() - 1)  # a later step, if any

    def check_twice() -> None:
        for step in sorted({0, last}):
            input.repeated_batch(step, input)

    def check_history() -> None:
        input.repeated_batch(last, again)

    def check_specs() -> None:
        for step in sorted({0, last}):
            input.check_batch(input.batch(step))

    yield "the batch of a step made twice is the same", check_twice
    yield "no batch depends on those made before it", check_history
    yield "names, shapes and dtypes are as in specs", check_specs
    yield "rows made alone = rows of the whole batch", lambda: _check_rows(input, last)


def _check_rows(input: Input, step: int) -> None:
    size = input.num_rows(step)
    if size < 2:
        raise NotChecked("a batch has one row")
    whole = claim.as_arrays(input.batch(step))
    for rows in (slice(0, 1), slice(1, size)):
        part = input.batch(step, rows=rows)
        for name, value in whole.items():
            if name not in part or array_content(value[rows]) != array_content(part[name]):
                raise Broken(
                    f"the array {name!r} of batch({step}, rows={rows.start}:{rows.stop}) differs"
                    " from the same rows of the whole batch: processes of a run need them equal"
                )


# ---- layers and task -----------------------------------------------------------------------------


def _check_task(experiment: Experiment) -> Iterator[Claim]:
    task, shapes, layers = experiment.task, layer_claims.Recorder(), layer_claims.Recorder()
    subject, where = f"task ({type(task).__name__})", claim.own_line(type(task))
    text = "no variable, no random numbers but from random_key, no clock"
    traced = check_claim(text, subject, lambda: _trace(experiment, shapes), where=where)
    yield traced
    values, unit = layer_call.perturbed_values(task), _unit(experiment, shapes)
    batch = _first_examples(experiment, unit)
    text = "a training step computes a batch"
    called = check_claim(
        text, subject, lambda: _call(experiment, values, batch, layers), where=where
    )
    if called.outcome != "pass":
        yield called
    for layer in _select_layers([*layers.calls]):
        yield from _check_layer(layers.example(layer, task, values))
    broken = next((check for check in (traced, called) if check.outcome == "FAILED"), None)
    for text, check in _task_claims(_TaskExample(experiment, values, batch, unit)):
        if broken is not None:
            why = f"as this failed: {broken.text}"
            yield Claim(text, subject, "not checked", why)
        else:
            yield check_claim(text, subject, check, where=where)


def _check_layer(example: layer_claims.Example) -> Iterator[Claim]:
    subject, where = str(example.layer), claim.own_line(type(example.layer))
    broken = False
    for number, (text, check) in enumerate(layer_claims.layer_claims(example)):
        if broken:
            yield Claim(text, subject, "not checked", "as its first claim failed")
            continue
        checked = check_claim(text, subject, check, where=where)
        broken = number == 0 and checked.outcome == "FAILED"
        yield checked


def _select_layers(layers: Sequence[Layer]) -> list[Layer]:
    """Returns the layers to check: of the user's own classes, one for each class and params.

    Without own classes, it is one for each class, but no stack of lingo's: checking a stack would
    compute most of the task again.
    """
    own = [layer for layer in layers if not is_lingos(type(layer))]
    others = [layer for layer in layers if not isinstance(layer, (Stack, Chain))]
    selected: list[Layer] = []
    for layer in own or others:
        same = [other for other in selected if type(other) is type(layer)]
        if not same or (own and all(other.p != layer.p for other in same)):
            selected.append(layer)
    return selected


def _trace(experiment: Experiment, recorder: layer_claims.Recorder) -> None:
    """Traces the losses and metrics of a batch; `recorder` records the calls of layers.

    Raises ParamError for hidden state, such as variables or the clock.
    """
    learner = experiment.learner

    def trace(state: train_state.TrainState, batch: Batch) -> list[Any]:
        call = {"training": True, "key": random.root_key(learner.seed), "observer": recorder}
        given = (learner.task, state.weights, state.state, batch)
        named = task_check.loss_sums(*given, call).by_name() | task_check.metric_sums(*given)
        return [*named.values()]

    graph_of(trace, learner, experiment.train_input.specs())


def _call(
    experiment: Experiment,
    values: layer_call.LayerValues,
    batch: Batch,
    recorder: layer_claims.Recorder,
) -> None:
    """Computes the losses of a batch; `recorder` records the calls of layers."""
    call = {"training": True, "key": random.root_key(1), "observer": recorder}
    tensors = layer_call.as_tensors(dict(batch))
    task_check.loss_sums(experiment.task, values.weights, values.state, tensors, call)


def _unit(experiment: Experiment, recorder: layer_claims.Recorder) -> int:
    """Returns the unit: the size of a part of a batch must be a multiple of this number."""
    shapes = recorder.input_shapes().items()
    return math.lcm(*(layer_claims.rows_together(layer, shape) for layer, shape in shapes))


def _first_examples(experiment: Experiment, unit: int) -> dict[str, np.ndarray]:
    """Returns examples of the first batch: two units or more, if the batch has them."""
    size = max(2, -(-_NUM_EXAMPLES // unit)) * unit
    num = experiment.train_input.num_rows(0)
    rows = slice(0, size if size <= num else num)
    batch = experiment.train_input.batch(0, rows=rows)
    return {name: np.asarray(value) for name, value in batch.items()}


# ---- a task --------------------------------------------------------------------------------------


class _TaskExample(NamedTuple):
    """A task with weights, and some examples of a batch.

    Attributes:
        experiment: a built experiment on one device.
        values: weights and states of the experiment's task.
        batch: {name: [B, ...]} arrays, with `rows`.
        unit: the size of a part of a batch must be a multiple of this number.
    """

    experiment: Experiment
    values: layer_call.LayerValues
    batch: Mapping[str, np.ndarray]
    unit: int

    @property
    def size(self) -> int:
        """The number of examples, B."""
        return len(self.batch["rows"])


class _Sums(NamedTuple):
    """A training step's sums over examples."""

    scalars: dict[str, np.ndarray]  # name of a loss or denominator -> scalar
    gradients: dict[str, np.ndarray]  # name of a weight -> its gradient
    without_gradient: list[str]  # weights that the loss does not depend on


def _task_claims(example: _TaskExample) -> _Claims:
    """Yields the text of each claim about a task, and its check."""
    checks = {
        "every weight has a gradient": _check_gradient,
        "eager = graph = XLA": _check_engines,
        "losses and denominators of uneven parts add up to the whole": _check_parts,
        "metrics of uneven parts add up to the whole": _check_metrics,
        "examples of weight 0 change nothing": _check_padding,
        f"{_NUM_STEPS} steps, saved and resumed after {_NUM_STEPS // 2}, = {_NUM_STEPS} steps": (
            _check_resumed
        ),
    }
    for text, check in checks.items():
        yield text, functools.partial(check, example)


# ---- one step ------------------------------------------------------------------------------------


def _check_gradient(example: _TaskExample) -> None:
    frozen = find_frozen(example.experiment.learner)
    missing = [w for w in _step_sums(example).without_gradient if w not in frozen]
    if missing:
        layer, _ = find_owner(example.experiment.task, missing[0])
        raise Broken(
            f"the loss does not depend on the weight {', '.join(missing)}: use it in the layer's"
            " call, without tf.stop_gradient, or let the optimizer ByPath freeze it",
            where=claim.own_line(type(layer)),
        )


def _check_engines(example: _TaskExample) -> None:
    eager, graph, xla = (_step_sums(example, engine=e) for e in ("eager", "graph", "xla"))
    _check_sums(eager, graph, "as a graph, not eagerly")
    _check_sums(graph, xla, "compiled by XLA")


def _check_sums(plain: _Sums, other: _Sums, what: str) -> None:
    floor = layer_claims.FLOOR * claim.largest_of([*plain.scalars.values()])
    claim.require_same(
        plain.scalars, other.scalars, what=what, tolerance=layer_claims.ROUNDING, floor=floor
    )
    layer_claims.check_gradients(plain.gradients, other.gradients, what=what)


def _step_sums(
    example: _TaskExample,
    *,
    engine: layer_call.Engine = "eager",
    batch: Mapping[str, np.ndarray] | None = None,
    denominators: Mapping[str, Any] | None = None,
) -> _Sums:
    """Computes a training step's sums over some examples.

    Args:
        example: the task, its weights and a batch.
        engine: how TensorFlow computes.
        batch: a part of the batch; None: the whole batch.
        denominators: loss term -> denominator of the whole batch, float32 scalar; None: the
            denominators of `batch`.
    """
    task, values = example.experiment.task, example.values
    batch = example.batch if batch is None else batch
    names: list[str] = []

    tensors, unused = layer_call.as_tensors(dict(batch)), set[str]()
    call = {"training": True, "key": random.root_key(1)}
    call |= {"compiled": engine == "xla", "unused_weights": unused}

    def step() -> Any:
        weights = tf.nest.map_structure(tf.identity, values.weights)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            sums = task_check.loss_sums(task, weights, values.state, tensors, call)
            losses = normalize_losses(
                task, sums.losses, sums.side_losses, denominators or sums.denominators
            )
        named = sums.by_name()
        names[:] = named
        return [*named.values()], tape.gradient(losses["total"], weights)

    scalars, gradients = layer_call.run(step, engine)
    reached = {k: tf.convert_to_tensor(v) for k, v in gradients.items() if v is not None}
    return _Sums(
        {name: np.asarray(value) for name, value in zip(names, scalars, strict=True)},
        layer_call.by_name(reached),
        sorted(unused.union(gradients.keys() - reached.keys())),
    )


# ---- parts ---------------------------------------------------------------------------------------


def _check_parts(example: _TaskExample) -> None:
    task = example.experiment.task
    if any(layer.batch_requirements().examples_counted == 0 for layer in task.tree()):
        raise NotChecked(
            "a layer takes the statistics of all examples of a call (a BatchNorm without"
            " statistics_over)"
        )
    parts = _parts(example)
    denominators = task.loss_denominators(layer_call.as_tensors(dict(example.batch)))
    whole, *sums = (
        _step_sums(example, batch=batch, denominators=denominators)
        for batch in (example.batch, *parts)
    )
    _check_sums(whole, _add(sums), _describe_parts(parts))


def _check_metrics(example: _TaskExample) -> None:
    parts = _parts(example)
    whole, *states = (_metric_states(example, batch) for batch in (example.batch, *parts))
    total = {name: sum(state[name] for state in states) for name in whole}
    what, floor = _describe_parts(parts), layer_claims.FLOOR * claim.largest_of([*whole.values()])
    claim.require_same(
        whole, _as_given(total, whole), what=what, tolerance=layer_claims.ROUNDING, floor=floor
    )


def _check_padding(example: _TaskExample) -> None:
    task, values = example.experiment.task, example.values
    if task_check.num_examples(task) > example.size:
        raise NotChecked(f"layers compute all {example.size} examples of a batch together")
    frozen = find_frozen(example.experiment.learner)
    problem = task_check.padding_problem(
        task, values.weights, values.state, example.batch, frozen=frozen
    )
    if problem:
        raise Broken(problem.splitlines()[0].partition(": ")[2])


def _describe_parts(parts: Sequence[Mapping[str, np.ndarray]]) -> str:
    return f"parts of {' and '.join(str(len(part['rows'])) for part in parts)} rows together"


def _parts(example: _TaskExample) -> list[dict[str, np.ndarray]]:
    """Splits the batch into two parts; the first is as small as possible."""
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


def _metric_states(example: _TaskExample, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    values, tensors = example.values, layer_call.as_tensors(dict(batch))
    task = example.experiment.task
    return claim.as_arrays(task_check.metric_sums(task, values.weights, values.state, tensors))


# ---- steps ---------------------------------------------------------------------------------------


def _check_resumed(example: _TaskExample) -> None:
    experiment, half = example.experiment, _NUM_STEPS // 2
    whole = _train(
        experiment, example.size, train_state.initial_state(experiment.learner), _NUM_STEPS
    )
    state = _train(experiment, example.size, train_state.initial_state(experiment.learner), half)
    again = experiment.p.build()  # as a new process does
    with tempfile.TemporaryDirectory(prefix="lingo-check-") as folder:
        tensors = train_state.named_tensors(experiment.learner, state)
        store.save(Path(folder), step=half, tensors=tensors, metadata={}, retention=Retention(1))
        found = store.find(Path(folder), half, of=Path(folder))
        resumed = train_state.load_arrays(train_state.restore_state(again.learner, found))
    again.train_input.prepare()
    state = _train(again, example.size, resumed, _NUM_STEPS - half)
    differ = [
        name
        for (name, a), (_, b) in zip(
            train_state.named_tensors(experiment.learner, whole),
            train_state.named_tensors(again.learner, state),
            strict=True,
        )
        if np.asarray(a).tobytes() != np.asarray(b).tobytes()
    ]
    if differ:
        more = f" and {len(differ) - 1} others" if len(differ) > 1 else ""
        raise Broken(
            f"after step {_NUM_STEPS} {differ[0]}{more} differ: the step or the input depends on"
            " something that no checkpoint holds"
        )


def _train(experiment: Experiment, size: int, state: Any, num_steps: int) -> Any:
    """Returns the state after `num_steps` steps on `size` examples each, in a new program."""
    learner = experiment.learner._replace(accumulation_steps=1)
    program = experiment.runtime.start(learner, state)
    first = int(np.asarray(state.step))
    for step in range(first, first + num_steps):
        batch = experiment.train_input.batch(step, rows=slice(0, size))
        program.train({name: np.asarray(value)[None] for name, value in batch.items()})
    return program.state()
