"""Every optimizer computes the same when each device updates its part of a weight alone.

A task of four weights whose sizes divide by no mesh: a matrix, a bias, a number, and three stacked
layers. On eight devices an update is cut along `data`, or weights rest cut along it, or both.
"""

import functools
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
from lingo.optim.adafactor import Adafactor
from lingo.optim.adagrad import Adagrad
from lingo.optim.adam import Adam, AdamW
from lingo.optim.by_path import ByPath, Frozen
from lingo.optim.layerwise import Lamb, Lars
from lingo.optim.lion import Lion
from lingo.optim.optimizer import Optimizer
from lingo.optim.rmsprop import RmsProp
from lingo.optim.sgd import Momentum, Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.runtime import Program

NUM_STEPS = 10

CASES = {
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
    "RmsProp": RmsProp.params(learning_rate=0.1, centered=True, momentum=0.5),
    "Sgd": Sgd.params(learning_rate=0.1),
    "clipped over all, averaged": Adam.params(learning_rate=0.1, max_grad_norm=0.1, ema_decay=0.5),
    "clipped by value and weight": Sgd.params(
        learning_rate=0.1, max_grad_value=0.2, max_weight_grad_norm=0.1, max_grad_norm=0.15
    ),
}
MESHES = {
    "update": Mesh.params(data=4, model=2, shard_update=True),
    "weights": Mesh.params(data=2, model=2, shard_weights=True),
}


def pulled(where: str, w: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns the squared distance of a weight from its goal times each of B numbers, summed."""
    goal = np.sin(np.arange(np.prod(w.shape)) + len(where)).astype(np.float32).reshape(w.shape)
    products = tf.reduce_sum(x) * tf.reduce_sum(w * goal)
    squares = x.shape[0] * tf.reduce_sum(w * w) + tf.reduce_sum(x * x) * np.sum(goal * goal)
    return squares - 2.0 * products


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


def test_every_optimizer_class_is_among_the_cases():
    def classes(cls: type = Optimizer) -> set[type]:
        return {cls}.union(*(classes(sub) for sub in cls.__subclasses__()))

    own = {cls.__name__ for cls in classes() if cls.__module__.startswith("lingo.")}
    assert own - {"Optimizer", "LayerwiseOptimizer"} <= set(CASES)


def learner(optimizer: Params, **fields: Any) -> Learner:
    return Learner(Pull.params(**fields).build(), optimizer.build())


def trained(program: Program) -> TrainState:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(NUM_STEPS, 8)).astype(np.float32)
    rows = np.tile(np.arange(8, dtype=np.int32), (NUM_STEPS, 1))
    program.train({"x": x, "weights": np.ones_like(x), "rows": rows})
    return program.state()


@functools.cache
def on_one_device(name: str) -> TrainState:
    one = learner(CASES[name])
    return trained(Local.params().build().start(one, initial_state(one)))


@pytest.mark.parametrize(
    ("name", "mesh"),
    [*((name, "update") for name in CASES), ("Adafactor", "weights"), ("AdamW", "weights")],
)
def test_the_update_in_parts_is_that_of_one_device(name, mesh):
    one = learner(CASES[name])
    program = MESHES[mesh].build().start(one, initial_state(one))
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6),
        trained(program),
        on_one_device(name),
    )


@pytest.mark.parametrize("name", ["Lamb", "Lars"])
def test_each_layer_of_a_stack_or_pipeline_has_a_ratio_of_its_own(name):
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
