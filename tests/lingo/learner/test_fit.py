"""Layers are fitted to training examples, each to what the fitted layers before it compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.data import ArrayInput
from lingo.layers import Chain, Layer, Linear, Normalize, Repeat
from lingo.learner import fit
from lingo.learner.fit import fit_layers, layers_to_fit, training_examples
from lingo.learner.state import Learner, initial_state, load_arrays
from lingo.learner.task import Task
from lingo.optim import Sgd

X = np.random.RandomState(0).normal(3.0, 2.0, (50, 4)).astype("f")


class Regression(Task):
    """A model of `x` whose squared results are the loss."""

    model: Layer

    def setup(self) -> None:
        self.model = self.p.model.build()

    def loss(self, batch: Any) -> dict[str, Any]:
        return {"loss": tf.reduce_sum(tf.square(self.model(batch["x"])))}


def fitted(model: Params, x: np.ndarray = X) -> dict[str, np.ndarray]:
    task = Regression.params(model=model).build()
    learner = Learner(task, Sgd.params(learning_rate=0.1).build())
    batch = {"x": x, "rows": np.arange(len(x), dtype="i"), "weights": np.ones(len(x), "f")}
    return fit_layers(task, layers_to_fit(task), initial_state(learner), batch)


def test_a_layer_is_fitted_to_what_layers_before_it_compute() -> None:
    normalize, linear = Normalize.params(dim=4), Linear.params(dim=4, output_dim=4)
    model = Chain.params(layers=[normalize, linear, normalize.copy()])
    found = fitted(model)
    assert sorted(found) == [
        f"model/layers/{i}/{name}" for i in (0, 2) for name in ("mean", "scale")
    ]
    task = Regression.params(model=model).build()
    state = load_arrays(initial_state(Learner(task, Sgd.params(learning_rate=0.1).build())))
    z = (X - X.mean(0)) / X.std(0) @ state.weights["model/layers/1/w"]
    np.testing.assert_allclose(found["model/layers/0/mean"], X.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found["model/layers/2/scale"], z.std(0), rtol=1e-4)
    assert all(value.dtype == np.float32 for value in found.values())


def test_only_layers_with_their_own_fit_and_without_known_states_are_fitted() -> None:
    model = Chain.params(layers=[Normalize.params(dim=4), Linear.params(dim=4, output_dim=4)])
    task = Regression.params(model=model).build()
    assert [type(layer) for layer in layers_to_fit(task)] == [Normalize]
    assert layers_to_fit(task, known=["model/layers/0/mean"]) == []


def test_a_layer_in_a_scan_is_refused() -> None:
    model = Repeat.params(layer=Normalize, num_layers=2)
    with pytest.raises(ParamError, match="stands in a loop over stacked layers"):
        fitted(Narrow.params(layer=model))


class Narrow(Layer):
    """A layer that gets its width."""

    layer: Layer

    def setup(self) -> None:
        self.layer = self.p.layer.build(dim=4)

    def __call__(self, x: Any) -> Any:
        return self.layer(x[:, None])


class Unused(Layer):
    """A layer whose inner layer is not called."""

    layer: Layer = Normalize.params(dim=4)

    def setup(self) -> None:
        self.layer = self.p.layer.build()

    def __call__(self, x: Any) -> Any:
        return x


def test_a_layer_that_the_loss_does_not_call_is_named() -> None:
    with pytest.raises(ParamError, match=r"model/layer \(Normalize\) is fitted .* does not call"):
        fitted(Unused.params())


class Wrong(Normalize):
    """A layer whose `fit` returns what the test sets."""

    result: dict[str, float] = {}

    def fit(self, x: np.ndarray) -> dict[str, np.ndarray]:
        return {name: np.full(4, value) for name, value in self.p.result.items()}


def test_fitted_values_that_are_no_states_or_not_finite_are_refused() -> None:
    with pytest.raises(ParamError, match=r"'median' of shape \[4\].*declares.*'mean': \[4\]"):
        fitted(Wrong.params(dim=4, result={"median": 1.0}))
    with pytest.raises(ParamError, match="'mean' with values that are not finite"):
        fitted(Wrong.params(dim=4, result={"mean": 1e300}))


def rows(num: int = 10) -> dict[str, np.ndarray]:
    return {"x": np.arange(num, dtype="f")[:, None]}


def test_examples_are_those_of_an_epoch_each_once() -> None:
    data = ArrayInput.params(function=rows, batch_size=4, seed=3).build()
    examples = training_examples(data)
    assert sorted(examples["x"][:, 0].tolist()) == list(range(10))
    assert examples["rows"].tolist() == list(range(10))


class Growing(ArrayInput):
    """An input whose batches become wider."""

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        batch = super().batch(step, rows=rows)
        return batch | {"x": np.repeat(batch["x"], 1 + step, axis=1)}


def test_batches_of_several_shapes_are_refused() -> None:
    data = Growing.params(function=rows, batch_size=4).build()
    with pytest.raises(ParamError, match="batches of Growing have several shapes"):
        training_examples(data)


def test_at_most_some_examples_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "MAX_EXAMPLES", 7)
    data = ArrayInput.params(function=rows, batch_size=4, shuffle=False).build()
    assert training_examples(data)["x"][:, 0].tolist() == list(range(7))
