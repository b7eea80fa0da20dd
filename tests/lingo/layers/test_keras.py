"""A layer or model of Keras as a layer: its values, its states, its random numbers, its errors.

Axes: B batch, D width.
"""

from __future__ import annotations

import random as python_random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import Stack, context
from lingo.layers.keras import Keras
from lingo.learner.state import Learner, TrainState, initial_state, initial_value, load_arrays
from lingo.learner.step import evaluate_batch, graph_of, step_graph, train_step
from lingo.learner.task import Task
from lingo.ops import random
from lingo.optim import Adam, ByPath, Frozen, Sgd
from tests.lingo.layers import keras_models as models
from tests.lingo.runtimes.child import printed

EXPERIMENT = """
import lingo
from lingo.data import ImageInput
from lingo.datasets import Digits
from lingo.layers import Keras
from lingo.optim import ByPath, Sgd
from tasks.image.task import ImageClassification

def dense():
    import keras
    flat, dense = keras.layers.Flatten(), keras.layers.Dense(10)
    return keras.Sequential([keras.Input((8, 8, 1)), flat, dense])

@lingo.experiment
def shown():
    return lingo.Experiment.params(
        task=ImageClassification.params(model=Keras.params(factory=dense)),
        train_input=ImageInput.params(source=Digits, batch_size=4),
        optimizer=ByPath.params(groups={"model/.*": Sgd.params(learning_rate=0.1)}),
    )
"""
B, D = 4, models.WIDTH
X = np.random.default_rng(0).normal(size=[B, D]).astype("f")
BATCH = {"x": X, "weights": np.ones(B, "f"), "rows": np.arange(B, dtype="i")}
SPECS = {name: (array.shape, array.dtype.name) for name, array in BATCH.items()}


class Squares(Task):
    """The sum of squares of what a model returns."""

    model: Any  # from [B, D]

    def setup(self) -> None:
        self.model = self.p.model.build()

    def loss(self, batch: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        y = self.model(batch["x"])
        return {"squares": tf.reduce_sum(tf.reduce_sum(y * y, -1) * batch["weights"])}


def build(factory: Callable[..., Any], **fields: Any) -> Keras:
    return Keras.params(factory=factory, **fields).build()


def values(layer: Any, seed: int = 0) -> dict[str, np.ndarray]:
    return {k: initial_value(s, seed) for k, s in {**layer.weights(), **layer.states()}.items()}


def call(layer: Keras, x: np.ndarray = X, **fields: Any) -> tuple[Any, Any]:
    weights = {k: tf.constant(initial_value(s, 0)) for k, s in layer.weights().items()}
    state = {k: tf.constant(initial_value(s, 0)) for k, s in layer.states().items()}
    fields = {"state": state, "rows": tf.range(len(x))} | fields
    return context.apply(layer, weights, tf.constant(x), call=fields)


def learner(factory: Callable[..., Any], optimizer: Any = None, parts: int = 1) -> Learner:
    optimizer = optimizer or Sgd.params(learning_rate=0.1)
    task = Squares.params(model=Keras.params(factory=factory)).build()
    return Learner(task, optimizer.build(), 0, parts, SPECS)


def train(mine: Learner, num_steps: int = 1) -> TrainState:
    state = tf.nest.map_structure(tf.constant, load_arrays(initial_state(mine)))
    batch = tf.nest.map_structure(tf.constant, BATCH)
    for _ in range(num_steps):
        state, _ = train_step(mine, state, batch)
    return state


def twin(layer: Keras) -> Any:
    """Returns a model of Keras with the initial values of a layer."""
    model = layer.p.factory()
    theirs = [*model.trainable_weights, *model.non_trainable_weights]
    for variable, value in zip(theirs, values(layer).values(), strict=True):
        variable.assign(value)
    return model


def test_variables_are_weights_and_states_by_their_paths() -> None:
    layer = build(models.normalized)
    assert list(layer.weights()) == [
        "dense/kernel", "dense/bias", "batch_normalization/gamma", "batch_normalization/beta",
        "dense_1/kernel", "dense_1/bias",
    ]  # fmt: skip
    assert list(layer.states()) == [
        "normalization/mean", "normalization/variance", "normalization/count",
        "batch_normalization/moving_mean", "batch_normalization/moving_variance",
    ]  # fmt: skip
    assert layer.output_shape([3, D]) == (3, 2)


def test_a_second_build_has_the_same_paths_whatever_keras_has_named_before() -> None:
    first = build(models.normalized)
    assert keras.layers.Dense(1).name != keras.layers.Dense(1).name
    assert list(build(models.normalized).weights()) == list(first.weights())


def test_initial_values_are_those_of_keras_initializers_and_follow_the_seed() -> None:
    before = python_random.getstate(), str(np.random.get_state())
    one, other = values(build(models.dense)), values(build(models.dense), seed=1)
    assert (python_random.getstate(), str(np.random.get_state())) == before
    np.testing.assert_equal(values(build(models.dense)), one)
    name = "sequential/dense/kernel"
    limit = np.sqrt(6 / (D + D))
    assert limit / 2 < np.abs(one[name]).max() < limit, "GlorotUniform"
    assert not np.any(one[name] == other[name])
    np.testing.assert_array_equal(one["sequential/dense/bias"], 0)


def test_layers_of_a_stack_have_values_of_their_own() -> None:
    stack = Stack.params(layer=Keras.params(factory=models.dense), num_layers=2).build(dim=D)
    first, _, second, _ = values(stack).values()
    assert not np.any(first == second)


def test_values_that_the_factory_sets_are_the_initial_values() -> None:
    assert all(np.all(value == 3.0) for value in values(build(models.loaded)).values())


def test_arguments_are_those_of_the_factory() -> None:
    layer = build(models.dense, arguments={"units": 7})
    assert layer.weights()["sequential/dense/kernel"].shape == (D, 7)
    with pytest.raises(ParamError, match=r"do not fit keras_models.py:dense: .*'unit'"):
        build(models.dense, arguments={"unit": 7})


def test_a_call_is_that_of_keras_and_in_training_sets_moving_statistics() -> None:
    layer = build(models.normalized)
    model = twin(layer)
    np.testing.assert_allclose(call(layer)[0], model(X), rtol=1e-6)
    _, sides = call(layer, training=True, key=random.root_key(0))
    model(X, training=True)
    found = {k: v["sum"] / v["weight"] for k, v in sides.batch_statistics.items()}
    mean, variance = (f"batch_normalization/moving_{name}" for name in ("mean", "variance"))
    assert set(found) == {mean, variance}
    np.testing.assert_allclose(found[mean], model.non_trainable_weights[-2], rtol=1e-5)
    np.testing.assert_allclose(found[variance], model.non_trainable_weights[-1], rtol=1e-5)


def test_dropout_draws_by_step_and_part_in_training_alone() -> None:
    layer = build(models.inner)  # its call has no argument `training`
    np.testing.assert_array_equal(call(layer)[0], X)

    def kept(key: int, rows: int = 0) -> list[bool]:
        fields = {"training": True, "key": random.root_key(key), "rows": tf.range(rows, rows + B)}
        return (call(layer, **fields)[0].numpy() != 0).ravel().tolist()

    assert kept(1) == kept(1)
    assert kept(1) != kept(2)
    assert kept(1) != kept(1, rows=B)
    assert 0 < sum(kept(1)) < B * D


def test_no_variable_is_read_and_no_number_drawn_by_the_program_alone() -> None:
    mine = learner(models.normalized, Adam.params(learning_rate=1e-3, ema_decay=0.9))

    def evaluation(state: TrainState, batch: Any) -> Any:
        return evaluate_batch(mine.task, state.weights, state.state, batch)

    for graph in (step_graph(mine, SPECS), graph_of(evaluation, mine, SPECS)):
        operations = list(graph.get_operations())
        stateful = {op.type for op in operations if op.op_def.is_stateful} - {"Placeholder"}
        assert stateful <= {"StatelessIf", "If"}
        assert tf.resource not in {output.dtype for op in operations for output in op.outputs}


def test_states_are_the_mean_over_parts_of_a_batch_and_frozen_ones_stay() -> None:
    whole, parts = train(learner(models.normalized)), train(learner(models.normalized, parts=2))
    name = "model/batch_normalization/moving_mean"
    np.testing.assert_allclose(parts.state[name], whole.state[name], rtol=1e-5)
    first = initial_state(learner(models.normalized)).state
    for name in ("mean", "variance", "count"):
        name = f"model/normalization/{name}"
        np.testing.assert_array_equal(parts.state[name], np.asarray(first[name]))


def test_layers_that_the_factory_freezes_are_states_that_stay() -> None:
    mine = learner(models.frozen)
    first, after = load_arrays(initial_state(mine)), train(mine, 2)
    assert set(after.state) == {"model/sequential/dense/kernel", "model/sequential/dense/bias"}
    np.testing.assert_equal(tf.nest.map_structure(np.asarray, after.state), first.state)


def test_weights_are_frozen_by_path_averaged_and_evaluated() -> None:
    groups = {".*/dense/.*": Frozen, "(?!.*/dense/).*": Sgd}
    optimizer = ByPath.params(learning_rate=0.1, ema_decay=0.5, groups=groups)
    mine = learner(models.normalized, optimizer)
    first, after = load_arrays(initial_state(mine)), train(mine)
    changed = [name for name, v in after.weights.items() if np.any(v != first.weights[name])]
    assert "model/dense_1/kernel" in changed
    assert not [name for name in changed if "/dense/" in name]
    batch = tf.nest.map_structure(tf.constant, BATCH)
    states = [after.select(w) for w in ("trained", "ema", "ema")]
    losses = [
        evaluate_batch(mine.task, state.weights, state.state, batch)["loss/squares"]
        for state in states
    ]
    trained, once, again = (float(loss["sum"]) for loss in losses)
    assert trained != once == again


@pytest.mark.parametrize("parts", [1, 2])
def test_losses_of_regularizers_are_a_loss_term_a_mean_over_examples(parts: int) -> None:
    mine = learner(models.regularized, parts=parts)
    state = tf.nest.map_structure(tf.constant, load_arrays(initial_state(mine)))
    _, report = train_step(mine, state, tf.nest.map_structure(tf.constant, BATCH))
    kernel = np.asarray(state.weights["model/dense/kernel"])
    expected = 0.5 * (kernel**2).sum() + 0.5 * ((X @ kernel) ** 2).sum() / B
    assert float(report["scalars"]["loss/keras"]) == pytest.approx(expected, rel=1e-5)


def test_a_dtype_is_the_policy_of_the_factory() -> None:
    layer = build(models.dense, dtype="bfloat16")
    y, _ = call(layer, np.ones([B, 3, D], "f"))
    assert y.dtype == tf.bfloat16
    assert keras.config.dtype_policy().name == "float32"
    assert {spec.dtype for spec in layer.weights().values()} == {"float32"}


def test_axes_are_those_of_the_pattern_that_matches() -> None:
    layer = build(models.dense, axes={".*/kernel": ["embed", "mlp"]})
    kernel, bias = layer.weights().values()
    assert (kernel.axes, bias.axes) == (("embed", "mlp"), (None,))


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"kernel": ["embed", "mlp"]}, r"'kernel' matches none of 2 weights.*'sequential/dense/k"),
        ({".*": ["mlp"], ".*/bias": ["mlp"]}, r"\['\.\*'\] has 1 axes, and 'seq.* shape \(4, 4\)"),
        ({".*/bias": ["mlp"], ".*/b.*": [None]}, r"'\.\*/bias' and '\.\*/b\.\*' match"),
        ({"(": []}, r"'\(' is not a regular expression"),
    ],
)
def test_axes_of_no_weight_of_two_patterns_or_of_another_shape_are_refused(axes, message) -> None:
    with pytest.raises(ParamError, match=message):
        build(models.dense, axes=axes).weights()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            models.number,
            r"Keras: keras_models.py:number returns int, not a layer or model",
        ),
        (models.unbuilt, r"returns 'dense', which is not built.*: begin with keras.Input\(shape\)"),
        (
            models.compiled,
            r"returns 'sequential' with metrics, as from compile\(\): leave them out",
        ),
        (models.twins, r"has two variables 'sequential/twins/same': give its layers names"),
        (models.broken, r"keras_models.py:\d+: OSError: no such file"),
    ],
)
def test_a_factory_that_returns_nothing_to_train_is_refused(factory, message) -> None:
    with pytest.raises(ParamError, match=message):
        build(factory).weights()


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("integers", r"keras_models.py:careless returns tf.int32, not tensors of floats"),
        (
            "unseeded",
            r"changes a variable that is not among its layer's, such as the seed of keras",
        ),
        ("always random", r"draws random numbers though training=False"),
        ("creates", r"creates variables when it is called"),
    ],
)
def test_a_call_that_no_step_can_repeat_or_train_is_refused(mistake: str, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        call(build(models.careless, arguments={"mistake": mistake}))


def test_an_experiment_with_it_is_shown_and_built_without_keras(tmp_path: Path) -> None:
    file = tmp_path / "shown.py"
    file.write_text(EXPERIMENT)
    code = (
        f"import sys, lingo; text = lingo.show(lingo.get('{file}:shown'))\n"
        "print([line for line in text.splitlines() if 'factory' in line])\n"
        f"experiment = lingo.get('{file}:shown').build()\n"
        "print({'keras', 'tensorflow'} & {name.partition('.')[0] for name in sys.modules})\n"
        f"print(len(experiment.learner.weights()))\n"
    )
    lines = printed("-c", code).splitlines()
    assert lines == ["['task.model.factory = shown.py:dense']", "set()", "2"]


def test_keras_of_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ParamError, match=r"computes with 'jax': set .* KERAS_BACKEND=tensorflow"):
        build(models.dense).weights()
