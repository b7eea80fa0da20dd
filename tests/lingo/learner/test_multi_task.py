"""A step trains one of several tasks, as a run of this task alone would, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.multi_task_input import TASK_OFFERS
from lingo.layers import context
from lingo.layers.linear import Linear
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import Remat
from lingo.learner.multi_task import MultiTask
from lingo.learner.state import Learner, TrainState
from lingo.learner.step import evaluate_batch, predict_batch
from lingo.learner.task import Task
from lingo.optim.adam import Adam, AdamW
from lingo.optim.sgd import Momentum
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling
from tests.lingo.learner.several_tasks import (
    SHARED,
    B,
    D,
    H,
    Regression,
    begin,
    data,
    learner,
    tasks,
    train,
)


def tensors(state: TrainState) -> dict[str, np.ndarray]:
    slots = {f"{k}:{name}": v for k, own in state.slots.items() for name, v in own.items()}
    return {**state.weights, **slots, **state.state}


def of_task(state: TrainState, name: str) -> TrainState:
    """Returns the state of one task as a run of this task alone has it."""
    prefix = f"tasks/{name}/"

    def own(values: dict[str, Any]) -> dict[str, Any]:
        return {
            k.removeprefix(prefix): v
            for k, v in values.items()
            if k.startswith(prefix) and not k.endswith("updates")
        }

    return TrainState(np.int32(0), own(state.weights), own(state.slots), own(state.state))


OPTIMIZERS = {
    "momentum": Momentum.params(learning_rate=0.1, max_grad_norm=0.3),
    "adam": Adam.params(learning_rate=0.1, ema_decay=0.9),
    "adamw": AdamW.params(learning_rate=0.1, weight_decay=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_tasks_that_share_nothing_train_as_runs_of_their_own_bit_by_bit(optimizer):
    both, inputs = learner(tasks(), OPTIMIZERS[optimizer]), data()
    first = begin(both)
    done = train(both, first, [inputs.batch(step) for step in range(12)])
    for number, name in enumerate("ab"):
        one = learner(Regression.params(), OPTIMIZERS[optimizer])
        own = inputs.inputs[name]
        alone = train(one, of_task(first, name), [own.batch(step) for step in range(6)])
        for i, (state, report) in enumerate(alone):
            shared, shared_report = done[2 * i + number]
            wanted, found = tensors(state), tensors(of_task(shared, name))
            assert wanted.keys() == found.keys()
            for where, value in wanted.items():
                assert value.tobytes() == found[where].tobytes(), where
            scalars = shared_report["scalars"]
            assert scalars[f"loss/{name}/error"] == report["scalars"]["loss/error"]
            assert scalars["loss/total"] == report["scalars"]["loss/total"]
            assert scalars["learner/grad_norm"] == report["scalars"]["learner/grad_norm"]


@pytest.mark.parametrize("shared", [{}, SHARED])
def test_a_step_changes_no_bit_of_other_tasks(shared):
    both, inputs = learner(tasks(**shared), OPTIMIZERS["adam"]), data()
    before = begin(both)
    for step, (state, _) in enumerate(train(both, before, [inputs.batch(i) for i in range(4)])):
        name, other = ("a", "b") if step % 2 == 0 else ("b", "a")
        old, new = tensors(before), tensors(state)
        changed = {where for where in old if old[where].tobytes() != new[where].tobytes()}
        unchanged = {w for w in old if w.startswith(f"tasks/{other}/") and "trunk" not in w}
        assert unchanged
        assert not changed & unchanged
        trunk = "tasks/a/trunk/w" if shared else f"tasks/{name}/trunk/w"
        assert {trunk, f"tasks/{name}/head/w", f"tasks/{name}/mean"} <= changed
        assert int(state.step) == step + 1
        before = state


def numpy_loop(first: TrainState, batches: list[Any], order: str) -> Iterator[dict[str, Any]]:
    """Yields the weights after each step, in float64: trunk, and the head of each task."""
    trunk = first.weights["tasks/a/trunk/w"].astype(np.float64)
    heads = {k: first.weights[f"tasks/{k}/head/w"].astype(np.float64)[:, 0] for k in "ab"}
    for batch, name in zip(batches, order, strict=True):
        x, y, head = batch["x"].astype(np.float64), batch["y"], heads[name]
        error = (x @ trunk @ head - y) / len(y)
        trunk, heads[name] = (
            trunk - 0.1 * np.outer(x.T @ error, head),
            head - 0.1 * (x @ trunk).T @ error,
        )
        yield {"trunk": trunk, **heads}


def test_two_tasks_with_a_shared_layer_equal_a_loop_in_numpy():
    both, inputs = learner(tasks(**SHARED)), data()
    assert "tasks/b/trunk/w" not in both.weights()
    batches, first = [inputs.batch(step) for step in range(10)], begin(both)
    found = train(both, first, batches)
    for (state, _), wanted in zip(found, numpy_loop(first, batches, "ab" * 5), strict=True):
        trunk = state.weights["tasks/a/trunk/w"]
        np.testing.assert_allclose(trunk, wanted["trunk"], rtol=1e-5, atol=1e-6)
        for name in "ab":
            head = state.weights[f"tasks/{name}/head/w"][:, 0]
            np.testing.assert_allclose(head, wanted[name], rtol=1e-5, atol=1e-6)


def test_adam_counts_the_updates_of_a_weight():
    both, inputs = learner(tasks(**SHARED), OPTIMIZERS["adam"]), data()
    *_, (state, _) = train(both, begin(both), [inputs.batch(step) for step in range(5)])
    part = both.select(inputs.batch(0))
    counts = {k: int(part.count_updates(k, state)) for k in part.weights()}
    assert counts == {"tasks/a/trunk/w": 5, "tasks/a/head/w": 3}
    assert state.state["tasks/b/updates"] == 2.0


def test_parts_of_a_batch_add_up():
    inputs = data()
    batches = [inputs.batch(step) for step in range(4)]
    whole, parts = learner(tasks(**SHARED)), learner(tasks(**SHARED), accumulation_steps=4)
    (one, _), (other, _) = (train(x, begin(x), batches)[-1] for x in (whole, parts))
    for where, value in tensors(one).items():
        np.testing.assert_allclose(tensors(other)[where], value, rtol=1e-5, atol=1e-6)


def test_a_step_that_is_not_finite_changes_nothing_and_is_counted():
    both, inputs = learner(tasks(), OPTIMIZERS["adam"]), data()
    first, batch = begin(both), inputs.batch(0)
    batch["y"][0] = np.inf
    ((state, report),) = train(both, first, [batch])
    old, new = tensors(first), tensors(state)
    assert {w for w in old if old[w].tobytes() != new[w].tobytes()} == {"tasks/a/updates"}
    assert report["first_non_finite"] >= 0


def test_reports_have_a_mean_of_each_task():
    both, inputs = learner(tasks()), data()
    ((_, report),) = train(both, begin(both), [inputs.batch(1)])
    error = report["scalars"]["loss/b/error"]
    assert report["metric_states"]["loss/b/error"] == {"sum": error, "weight": 1.0}
    assert report["metric_states"]["b/size"]["weight"] == 2 * B
    assert "loss/error" not in report["scalars"]


def test_evaluation_and_prediction_are_those_of_the_task():
    both, inputs = learner(tasks(**SHARED)), data()
    state, alone = begin(both), learner(Regression.params())
    weights = {
        f"{k}/w": state.weights[f"tasks/{t}/{k}/w"] for k, t in (("trunk", "a"), ("head", "b"))
    }
    batch = {k: tf.constant(v) for k, v in inputs.batch(1).items()}
    for function in (evaluate_batch, predict_batch):
        found = function(both.task, state.weights, state.state, batch)
        wanted = function(alone.task, weights, {"mean": np.float32(0)}, batch)
        assert found.keys() == wanted.keys()
        tf.nest.map_structure(np.testing.assert_array_equal, found, wanted)


# ---- shared layers


def language_models(stack: Any, **shared: str) -> Any:
    one = LanguageModeling.params(model=LanguageModel.params(dim=8, stack=stack), vocab_size=11)
    return MultiTask.params(tasks={"a": one, "b": one.copy()}, shared=shared)


LAYER = TransformerLayer.params()
LAYER.attention.num_heads = 2


@pytest.mark.parametrize(
    ("stack", "pattern", "target"),
    [
        (Stack.params(layer=LAYER, num_layers=2), r"tasks/b/(.*/stack)", r"tasks/a/\1"),
        (Repeat.params(layer=LAYER, num_layers=2), r"tasks/b/(.*/stack)", r"tasks/a/\1"),
        (
            Stack.params(layer=Remat.params(layer=LAYER), num_layers=2),
            r"tasks/b/(.*/stack/layers/\d)",
            r"tasks/a/\1",
        ),
        (
            Stack.params(layer=Remat.params(layer=LAYER), num_layers=2),
            r"tasks/(.*)/layers/\d/ffn",  # also inside a layer that is computed again
            "tasks/a/model/stack/layers/0/ffn",
        ),
    ],
)
def test_a_shared_layer_computes_with_the_weights_of_the_other_task(stack, pattern, target, draw):
    both = language_models(stack, **{pattern: target}).build()
    apart = language_models(stack).build()
    weights = draw(both)
    missing = apart.weights().keys() - weights.keys()
    assert missing
    tokens = np.arange(10, dtype=np.int32).reshape(2, 5)
    batch = {"tokens": tokens, "targets": tokens, "segments": tokens * 0 + 1}
    batch |= {"positions": tokens % 5, "weights": np.ones(2, "f"), "rows": np.arange(2)}
    batch = {k: tf.constant(v) for k, v in batch.items()} | {"task__b": tf.zeros([2], tf.int32)}

    def owner(where: str) -> str:
        if "/ffn" in pattern:
            head, _, tail = where.partition("/ffn/")
            return f"{target}/{tail}" if tail else head
        return where.replace("tasks/b/", "tasks/a/")

    copies = {k: weights[k] if k in weights else weights[owner(k)] for k in apart.weights()}
    call = {"rows": batch["rows"]}
    found, _ = context.apply(both, weights, batch, method="loss", call=call)
    wanted, _ = context.apply(apart, copies, batch, method="loss", call=call)
    assert found["cross_entropy"].numpy() == wanted["cross_entropy"].numpy()
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss, _ = context.apply(both, weights, batch, method="loss", call=call)
    gradients = tape.gradient(loss["cross_entropy"], weights)
    assert all(gradients[owner(where)] is not None for where in missing)


def test_a_shared_layer_is_visited_once():
    both = tasks(**SHARED).build()
    layers = list(both.tree())
    assert len({*map(id, layers)}) == len(layers)
    assert sum(isinstance(layer, Linear) for layer in layers) == 3
    assert both.tasks["b"].trunk is both.tasks["a"].trunk
    assert both.tasks["b"].trunk.path == "tasks/a/trunk"
    assert {*both.tasks["b"].weights()} == {"tasks/a/trunk/w", "tasks/b/head/w"}


WIDE = Regression.params(trunk=Linear.params(use_bias=False, output_dim=2 * H))
WIDE.head.dim = 2 * H
REPEATED = language_models(Repeat.params(layer=LAYER, num_layers=2)).tasks


class Bare(Task):
    """A task without layers."""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tasks": {}}, "tasks is empty"),
        ({"tasks": {"a/b": Regression}}, "becomes part of paths"),
        ({"shared": {"(": "x"}}, "not a regular expression"),
        ({"shared": {"tasks/c/trunk": "tasks/a/trunk"}}, "matches no layer, such as tasks/a/"),
        ({"shared": {"a": "b"}, "tasks": {"a": Bare}}, "'a' matches no layer[.]\n"),
        ({"shared": {"tasks/b/trunk": "tasks/a/trunc"}}, "does not exist. Did you mean"),
        ({"shared": {"tasks/b/trunk": r"tasks/\1/trunk"}}, "invalid group reference"),
        ({"shared": {"tasks/b/trunk": "tasks/a/head"}}, "output_dim is 4 and 1|dim is 3 and 4"),
        ({"shared": SHARED, "tasks": {"a": Regression, "b": WIDE}}, "output_dim is 8 and 4"),
        ({"shared": {**SHARED, "tasks/b/tr.*": "tasks/a/trunk"}}, "both match tasks/b/trunk"),
        ({"shared": {**SHARED, "tasks/a/trunk": "tasks/b/trunk"}}, "is replaced itself"),
        (
            {
                "tasks": REPEATED,
                "shared": {r"tasks/b/(.*)/ffn": r"tasks/a/\1/ffn"},
            },
            "share the whole stack, tasks/b/model/stack",
        ),
    ],
)
def test_settings_of_no_use_are_refused(fields, message):
    with pytest.raises(ParamError, match=message):
        MultiTask.params(**{"tasks": {"a": Regression, "b": Regression}} | fields).build()


def test_a_batch_names_its_task():
    task = tasks().build()
    with pytest.raises(ParamError, match="a batch of rows, x names no task"):
        task.select(["rows", "x"])
    with pytest.raises(ParamError, match="the task 'c', but tasks are a, b"):
        task.select(["task__c"])
    with pytest.raises(ParamError, match="names no task: take MultiTaskInput"):
        task.check_input({"dim": D})
    task.check_input({TASK_OFFERS: {"a": {"dim": D}}})


def test_a_learner_of_one_task_is_itself():
    one = learner(Regression.params())
    assert one.select(["x"]) is one
    assert isinstance(one, Learner)
