"""Every optimizer computes the same when each device updates its part of a weight alone.

A task of four weights whose sizes divide by no mesh: a matrix, a bias, a number, and three stacked
layers. On eight devices an update is cut along `data`, or weights rest cut along it, or both.
"""

import functools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers.initial import Constant, Initializer
from lingo.layers.layer import Layer
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import Learner, TrainState, initial_state, named_tensors
from lingo.learner.task import Task
from lingo.optim.adadelta import AdaDelta
from lingo.optim.adafactor import Adafactor
from lingo.optim.adagrad import Adagrad
from lingo.optim.adam import Adam, AdamW
from lingo.optim.by_path import ByPath, Frozen
from lingo.optim.layerwise import Lamb, Lars
from lingo.optim.lion import Lion
from lingo.optim.muon import Muon
from lingo.optim.optimizer import Optimizer
from lingo.optim.rmsprop import RmsProp
from lingo.optim.sgd import Momentum, Sgd
from lingo.optim.shampoo import Shampoo
from lingo.runtimes.layout import bytes_per_device
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.program import Program

NUM_STEPS = 10

CASES = {
    "AdaDelta": AdaDelta.params(learning_rate=1.0),
    "Adafactor": Adafactor.params(learning_rate=0.1, beta1=0.5),
    "Adagrad": Adagrad.params(learning_rate=0.1),
    "Adam": Adam.params(learning_rate=0.1),
    "AdamW": AdamW.params(learning_rate=0.1, weight_decay=0.5),
    "ByPath": ByPath.params(
        learning_rate=0.1,
        groups={
            "matrix": Adafactor,
            "bias|number": Frozen,
            "stack/layers/[02]/w": AdamW.params(weight_decay=0.5),
            "stack/layers/1/w": Frozen,
        },
    ),
    "Frozen": Frozen.params(),
    "Lamb": Lamb.params(learning_rate=0.1, weight_decay=0.5),
    "Lars": Lars.params(learning_rate=0.1, trust_coefficient=0.1, weight_decay=0.5),
    "Lion": Lion.params(learning_rate=0.1),
    "Momentum": Momentum.params(learning_rate=0.1, nesterov=True),
    "Muon": Muon.params(learning_rate=0.1, adam=["stack/layers/1/w"]),
    "RmsProp": RmsProp.params(learning_rate=0.1, centered=True, momentum=0.5),
    "Sgd": Sgd.params(learning_rate=0.1),
    "Shampoo": Shampoo.params(learning_rate=0.1, root_steps=2, ridge=0.1, max_dim=9),
    "clipped over all, averaged": Adam.params(
        learning_rate=0.1, max_grad_norm=0.1, ema_decay=0.5, ema_warmup=True
    ),
    "clipped by value and weight": Sgd.params(
        learning_rate=0.1, max_grad_value=0.2, max_weight_grad_norm=0.1, max_grad_norm=0.15
    ),
}
MESHES = {
    "update": Mesh.params(data=4, model=2, shard_update=True),
    "weights": Mesh.params(data=2, model=2, shard_weights=True),
}
BFLOAT16 = MESHES["update"].copy().set(gather_dtype="bfloat16")


def pulled(where: str, w: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns the squared distance of a weight from its goal times each of B numbers, summed."""
    own = goal(where, w.shape)
    products = tf.reduce_sum(x) * tf.reduce_sum(w * own)
    squares = x.shape[0] * tf.reduce_sum(w * w) + tf.reduce_sum(x * x) * np.sum(own * own)
    return squares - 2.0 * products


def goal(where: str, shape: Sequence[int]) -> np.ndarray:
    """Returns the goal of a weight of a name, float32 of its shape."""
    return np.sin(np.arange(np.prod(shape)) + len(where)).astype(np.float32).reshape(shape)


class Rows(Layer):
    """Heads of a width, to be stacked."""

    def setup(self) -> None:
        self.w = self.weight("w", [5, 9], axes=("heads", "embed"))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        self.side_loss("layers", pulled("w", self.w, x))
        return x


class Pull(Task):
    """Pulls every element of every weight towards a number of its own times that of the example."""

    init: Initializer = Constant.params(value=0.5)  # of what is no matrix
    stack: Stack = Repeat.params(layer=Rows, num_layers=3)  # the stacked ones

    def setup(self) -> None:
        half = self.p.init.build()
        self.matrix = self.weight("matrix", [6, 10], axes=("embed", "mlp"))
        self.bias = self.weight("bias", [10], axes=("mlp",), init=half)
        self.number = self.weight("number", [], axes=(), init=half)
        self.stack = self.p.stack.build()

    def loss(self, batch: Any) -> dict[str, tf.Tensor]:
        x = self.stack(batch["x"])
        return {name: pulled(name, getattr(self, name), x) for name in ("matrix", "bias", "number")}


def num_bytes(state: TrainState) -> int:
    """Returns the bytes of the arrays of a state, but the step, on all devices together."""
    return sum(
        shard.data.nbytes
        for array in tf.nest.flatten(state._replace(step=()))
        for shard in array.addressable_shards
    )


def expected_bytes(learner: Learner, runtime: Any) -> int:
    sizes = bytes_per_device(learner, runtime.layout(learner))
    each = sum(sizes[kind].per_device for kind in ("weights", "slots", "statistics"))
    return each * runtime.topology().num_devices


def test_every_optimizer_class_is_among_the_cases():
    def classes(cls: type = Optimizer) -> set[type]:
        return {cls}.union(*(classes(sub) for sub in cls.__subclasses__()))

    own = {cls.__name__ for cls in classes() if cls.__module__.startswith("lingo.")}
    assert own - {"Optimizer", "LayerwiseOptimizer", "MatrixOptimizer"} <= set(CASES)


def learner(optimizer: Params, **fields: Any) -> Learner:
    return Learner(Pull.params(**fields).build(), optimizer.build())


def batches() -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(NUM_STEPS, 8)).astype(np.float32)
    rows = np.tile(np.arange(8, dtype=np.int32), (NUM_STEPS, 1))
    return {"x": x, "weights": np.ones_like(x), "rows": rows}


def trained(program: Program) -> TrainState:
    program.train(batches())
    return program.state()


@functools.cache
def on_one_device(name: str) -> TrainState:
    one = learner(CASES[name])
    return trained(Local.params().build().start(one, initial_state(one)))


@pytest.mark.parametrize("name", CASES)
def test_the_update_in_parts_is_that_of_one_device(name):
    assert_updated_as_on_one_device(name, "update")


@pytest.mark.parametrize("name", ["Adafactor", "AdamW"])
def test_so_is_that_of_weights_in_parts(name):
    assert_updated_as_on_one_device(name, "weights")


def tolerance(name: str) -> float:
    """Returns the absolute tolerance of a case's weights and slots."""
    return 1e-5 if name == "Shampoo" else 1e-6  # eigenvectors of sums that are rounded otherwise


def assert_updated_as_on_one_device(name: str, mesh: str) -> None:
    one, runtime = learner(CASES[name]), MESHES[mesh].build()
    program: Any = runtime.start(one, initial_state(one))
    assert num_bytes(program._state) == expected_bytes(one, runtime)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=tolerance(name)),
        trained(program),
        on_one_device(name),
    )


def descended(one: Learner, *, except_for: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Returns weights, by path, after `trained` with Sgd: gradients are those at rounded weights.

    By slow NumPy: `pulled` has the gradient 2 w - 2 mean(x) goal, and each step of the master is
    in float32. Weights of the paths `except_for` are not rounded.
    """
    weights = {k: np.asarray(v) for k, v in initial_state(one).weights.items()}
    for x in batches()["x"]:
        for where, w in weights.items():
            layers = w if "layers" in where else w[None]
            name = "w" if "layers" in where else where
            read = layers if where in except_for else rounded(layers)
            goals = goal(name, layers.shape[1:])
            gradient = 2.0 * read - 2.0 * np.mean(x) * goals
            weights[where] = np.float32(layers - 0.1 * gradient).reshape(w.shape)
    return weights


def rounded(x: np.ndarray) -> np.ndarray:
    """Returns float32 rounded to 8 significant bits, ties to even, as bfloat16 has them."""
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.float32(np.ldexp(np.round(fraction * 2**8) / 2**8, exponent))


def test_layers_read_weights_that_are_gathered_in_bfloat16_and_updates_add_to_float32():
    one = learner(CASES["Sgd"])
    program: Any = BFLOAT16.build().start(one, initial_state(one))
    state = trained(program)
    assert num_bytes(program._state) == expected_bytes(one, BFLOAT16.build())
    assert {k: str(v) for k, v in BFLOAT16.build().layout(one).rest.items()} == {
        "matrix": "[-, model]/data",
        "bias": "[model]/data",
        "number": "[]",
        "stack/layers/[0:3]/w": "[-, model, -]/data",
    }
    expected = descended(one, except_for=["number"])  # every device has the only element
    for where, value in state.weights.items():
        np.testing.assert_allclose(value, expected[where], rtol=1e-6, atol=1e-6)
        exact = on_one_device("Sgd").weights[where]
        assert (where == "number") == np.allclose(value, exact, rtol=1e-5, atol=1e-5)
    batch = {name: array[0] for name, array in batches().items()}
    local = Local.params().build().start(one, state)
    found, same = (tf.nest.flatten(p.evaluate(batch)) for p in (program, local))
    np.testing.assert_allclose(found, same, rtol=1e-6)  # of float32 weights
    program.load(on_one_device("Sgd"))
    tf.nest.map_structure(np.testing.assert_array_equal, program.state(), on_one_device("Sgd"))


@pytest.mark.parametrize("name", ["Lamb", "Lars", "Muon", "Shampoo"])
def test_each_layer_of_a_stack_or_pipeline_is_a_weight_of_its_own(name):
    layers = {"layer": Rows.params(), "num_layers": 4}
    stages = Pipeline.params(**layers, num_stages=2, num_micro_batches=2)
    runtimes = {
        "separate": (Stack.params(**layers), Local.params()),
        "scan": (Repeat.params(**layers), Mesh.params(data=4, shard_update=True)),
        "pipeline": (stages, Mesh.params(stage=2, data=2, shard_update=True)),
    }
    found = {}
    for case, (stack, runtime) in runtimes.items():
        one = learner(CASES[name], stack=stack)
        program = runtime.build().start(one, initial_state(one))
        found[case] = dict(named_tensors(one, trained(program)))
    assert "weights/stack/layers/3/w" in found["separate"]
    for tensor, value in found["separate"].items():
        for case in ("scan", "pipeline"):
            message = f"{case}: {tensor}"
            np.testing.assert_allclose(found[case][tensor], value, 2e-5, 1e-6, err_msg=message)
