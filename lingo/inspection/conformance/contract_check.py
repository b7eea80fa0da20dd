"""Checks an experiment by the conformance tests of lingo: its input, its layers and its task.

    float32, on one device, with a few examples of the first batch
    input:   the same batches whenever they are made, as specs say
    layers:  the first call that the task makes of each; one layer of each class
    task:    additive over examples; 20 steps interrupted are 20 steps

The layers of the user's own classes are checked; of an experiment that has none, all are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.config.roots.user_line import is_lingos
from lingo.contract import Experiment
from lingo.data.input import Input
from lingo.inspection.conformance.claim import Claim, check_claim, own_line
from lingo.inspection.conformance.input_claims import input_claims
from lingo.inspection.conformance.layer_call import LayerValues, as_tensors, perturbed_values
from lingo.inspection.conformance.layer_claims import Example, layer_claims
from lingo.inspection.conformance.recording import Recorder, rows_together
from lingo.inspection.conformance.task_claims import TaskExample, task_claims
from lingo.layers import context
from lingo.layers.hidden_state import refuse_hidden_state
from lingo.layers.layer import Layer
from lingo.layers.stacks.chain import Chain
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import TrainState
from lingo.learner.step import evaluate_batch, graph_of
from lingo.learner.task import Batch
from lingo.ops import random
from lingo.runtimes.local import Local

_NUM_EXAMPLES = 4  # at least; of a batch with as many


def check_contract(params: Params) -> Iterator[Claim]:
    """Yields each claim about an experiment as soon as it is checked.

    It computes in float32 on one device, whatever the experiment's runtime; the caller's params
    stay as they are. It turns TensorFlow's graph optimizers off in this process, as training does.
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
        yield from _check_input(name, input, other)
    yield from _check_task(experiment)


def _check_input(name: str, input: Input, again: Input) -> Iterator[Claim]:
    for one in (input, again):
        one.prepare()
    subject = f"{name} ({type(input).__name__})"
    for text, check in input_claims(input, again):
        yield check_claim(text, subject, check, where=own_line(type(input)))


def _check_task(experiment: Experiment) -> Iterator[Claim]:
    task, shapes, layers = experiment.task, Recorder(), Recorder()
    subject, where = f"task ({type(task).__name__})", own_line(type(task))
    text = "no variable, no random numbers but from random_key, no clock"
    traced = check_claim(text, subject, lambda: _trace(experiment, shapes), where=where)
    yield traced
    values, unit = perturbed_values(task), _unit(experiment, shapes)
    batch = _first_examples(experiment, unit)
    text = "a training step computes a batch"
    called = check_claim(
        text, subject, lambda: _call(experiment, values, batch, layers), where=where
    )
    if called.outcome != "pass":
        yield called
    for layer in _select_layers([*layers.calls]):
        yield from _check_layer(layers.example(layer, task, values))
    broken = next((claim for claim in (traced, called) if claim.outcome == "FAILED"), None)
    for text, check in task_claims(TaskExample(experiment, values, batch, unit)):
        if broken is not None:
            why = f"as this failed: {broken.text}"
            yield Claim(text, subject, "not checked", why)
        else:
            yield check_claim(text, subject, check, where=where)


def _check_layer(example: Example) -> Iterator[Claim]:
    subject, where = str(example.layer), own_line(type(example.layer))
    broken = False
    for number, (text, check) in enumerate(layer_claims(example)):
        if broken:
            yield Claim(text, subject, "not checked", "as its first claim failed")
            continue
        claim = check_claim(text, subject, check, where=where)
        broken = number == 0 and claim.outcome == "FAILED"
        yield claim


def _select_layers(layers: Sequence[Layer]) -> list[Layer]:
    """Returns a layer of each class: of own classes, one for all params that differ.

    Without own classes, lingo's stacks are left out: they compute most of what the task does.
    """
    own = [layer for layer in layers if not is_lingos(type(layer))]
    others = [layer for layer in layers if not isinstance(layer, (Stack, Chain))]
    selected: list[Layer] = []
    for layer in own or others:
        same = [other for other in selected if type(other) is type(layer)]
        if not same or (own and all(other.p != layer.p for other in same)):
            selected.append(layer)
    return selected


# ---- a training step -----------------------------------------------------------------------------


def _trace(experiment: Experiment, recorder: Recorder) -> None:
    """Traces the losses and metrics of a batch; refuses hidden state (ParamError)."""
    learner, specs = experiment.learner, experiment.train_input.specs()

    def trace(state: TrainState, batch: Batch) -> list[Any]:
        fields = {"state": state.state, "training": True, "rows": batch["rows"]}
        fields |= {"key": random.root_key(learner.seed), "observer": recorder}
        with refuse_hidden_state():
            denominators = learner.task.loss_denominators(batch)
            losses, sides = context.apply(
                learner.task, state.weights, batch, method="loss", call=fields
            )
        metrics = evaluate_batch(learner.task, state.weights, state.state, batch)
        return [denominators, losses, sides.losses, metrics]

    graph_of(trace, learner, specs)


def _call(experiment: Experiment, values: LayerValues, batch: Batch, recorder: Recorder) -> None:
    """Computes the losses of a batch, and records the calls of layers."""
    fields = {"state": values.state, "training": True, "rows": tf.constant(batch["rows"])}
    fields |= {"key": random.root_key(1), "observer": recorder}
    tensors = as_tensors(dict(batch))
    context.apply(experiment.task, values.weights, tensors, method="loss", call=fields)


def _unit(experiment: Experiment, recorder: Recorder) -> int:
    """Returns the number of examples that parts of a batch have to be multiples of."""
    shapes = recorder.input_shapes().items()
    return math.lcm(*(rows_together(layer, shape) for layer, shape in shapes))


def _first_examples(experiment: Experiment, unit: int) -> dict[str, np.ndarray]:
    """Returns the first examples of the first batch: two units or more, if it has them."""
    size = max(2, -(-_NUM_EXAMPLES // unit)) * unit
    num = experiment.train_input.num_rows(0)
    rows = slice(0, size if size <= num else num)
    batch = experiment.train_input.batch(0, rows=rows)
    return {name: np.asarray(value) for name, value in batch.items()}
