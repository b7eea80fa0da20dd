"""Images whose rows and columns are split over devices: results and gradients are those of one."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from lingo import layers as nn
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import context
from lingo.layers.vision.resnet import resnet as resnet_layers
from lingo.learner.state import Learner, initial_state
from lingo.mesh.halo import halo
from lingo.mesh.hlo.collectives import collectives
from lingo.mesh.hlo.module import parse
from lingo.mesh.rules import RECIPES
from lingo.mesh.topology import topology
from lingo.optim.sgd import Sgd
from lingo.runtimes.layout import Layout
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.annotation import AxisRules
from lingo.runtimes.mesh.engine import device_mesh, engine
from lingo.runtimes.mesh.mesh import Mesh
from tasks.image.segmentation import Segmentation
from tasks.image.task import ImageClassification

B, W, C, STEPS = 4, 5, 2, 5


def conv(**fields: Any) -> Params:
    return nn.Conv2D.params(dim=C, output_dim=3, **fields)


LAYERS: dict[str, Params] = {
    "conv": conv(use_bias=True),
    "stem": conv(kernel=(7, 7), stride=2),
    "strided": conv(stride=2),
    "pointwise": conv(kernel=(1, 1), stride=2),
    "inside": conv(padding="VALID", kernel=(4, 2), stride=3),
    "dilated": conv(dilation=2, padding="VALID"),
    "depthwise": nn.DepthwiseConv2D.params(dim=C, stride=2, multiplier=2),
    "transposed": nn.TransposedConv2D.params(dim=C, output_dim=3),
    "transposed inside": nn.TransposedConv2D.params(dim=C, output_dim=3, padding="VALID"),
    "max": nn.MaxPool.params(window=(3, 3), stride=2),
    "max, same size": nn.MaxPool.params(window=(3, 3), stride=1),
    "mean": nn.AveragePool.params(window=(3, 3), stride=1),
    "resize": nn.Resize.params(size=(4, 7)),
    "nearest": nn.Resize.params(size=(20, 10), method="nearest"),
    "batch norm": nn.BatchNorm.params(dim=C, statistics_over=2),
    "head": nn.ImageHead.params(dim=C, num_classes=3),
}
MESHES = {
    "rows of half of a batch": ({"data": 2, "height": 4}, 10),
    "more devices than rows": ({"height": 8}, 7),
    "rows and columns": ({"height": 4, "width": 2}, 8),
    "rows and columns of half of a batch": ({"data": 2, "height": 2, "width": 2}, 8),
    "two devices with the same rows": ({"height": 4, "model": 2}, 10),
}


def compute(layers: dict[str, Any], rules: Any, values: Any, states: Any, x: Any) -> Any:
    """Returns results, and gradients of the input and of weights, by layer."""
    results = {}
    for name, layer in layers.items():
        with tf.GradientTape() as tape:
            tape.watch((x, values[name]))
            call = {"rules": rules, "compiled": rules is not None, "training": True}
            y, _ = context.apply(
                _Root(layer), values[name], x, call={**call, "state": states[name]}
            )
            total = tf.reduce_sum(tf.sin(y))  # of another gradient for each element
        results[name] = {"y": y, "gradients": tape.gradient(total, (x, values[name]))}
    return results


class _Root:
    """A layer of images that come split."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self._layer(context.annotate(x, "batch", "height", "width", "channels"))


@pytest.mark.parametrize("case", MESHES)
def test_layers_and_their_gradients_are_those_of_one_device(case: str) -> None:
    sizes, height = MESHES[case]
    mesh = topology(sizes)
    rules = AxisRules(Layout(mesh, RECIPES["1d"], *({},) * 8))
    layers = {name: params.build() for name, params in LAYERS.items()}
    draw = np.random.default_rng(0)
    values, states = (
        {
            name: {
                path: draw.normal(0, 0.3, spec.program_shape).astype("f") for path, spec in specs
            }
            for name, specs in all_specs.items()
        }
        for all_specs in (
            {name: layer.weights().items() for name, layer in layers.items()},
            {name: layer.states().items() for name, layer in layers.items()},
        )
    )
    x = draw.normal(size=[B, height, W, C]).astype("f")
    arguments = tf.nest.map_structure(tf.constant, (values, states, x))
    expected = tf.function(lambda *a: compute(layers, None, *a), autograph=False)(*arguments)
    from jax.experimental import jax2tf

    jax = engine()
    everywhere = jax.sharding.NamedSharding(device_mesh(mesh), jax.sharding.PartitionSpec())
    with jax.enable_x64(True):
        found = jax.jit(
            jax2tf.call_tf(lambda *a: compute(layers, rules, *a), has_side_effects=False),
            in_shardings=everywhere,
            out_shardings=everywhere,
        )(values, states, x)
    for name in layers:
        tf.nest.map_structure(
            lambda one, many, name=name: np.testing.assert_allclose(
                many, one, rtol=1e-4, atol=1e-5 * max(1, np.abs(one).max()), err_msg=name
            ),
            expected[name],
            found[name],
        )


def resnet() -> Params:
    layers = resnet_layers(num_layers=18, num_classes=3, width=4, channels=1)
    layers = [*layers[:3], layers[4], layers[-1].set(dim=8)]  # the stem and a block of two stages
    model = nn.Chain.params(layers=layers)
    model.all(nn.BatchNorm).set(statistics_over=2, epsilon=0.1)
    return ImageClassification.params(model=model, num_classes=3, image_shape=(10, 9, 1))


def unet() -> Params:
    model = nn.UNet3D.params(dim=1, num_classes=3, width=2, num_levels=2)
    model.all(nn.BatchNorm).set(statistics_over=2, epsilon=0.1)
    return Segmentation.params(model=model, num_classes=3, volume_shape=(4, 10, 6, 1))


NETWORKS = {"resnet": (resnet, (10, 9, 1)), "unet": (unet, (4, 10, 6, 1))}


def batches(network: str) -> dict[str, np.ndarray]:
    draw, shape = np.random.default_rng(0), NETWORKS[network][1]
    places = shape[:-1] if network == "unet" else ()
    return {
        "images": draw.normal(size=[STEPS, B, *shape]).astype("f"),
        "labels": draw.integers(0, 3, [STEPS, B, *places], np.int32),
        "weights": np.ones([STEPS, B], "f"),
        "rows": np.tile(np.arange(B, dtype=np.int32), [STEPS, 1]),
    }


@functools.cache
def losses(network: str, **mesh: int) -> np.ndarray:
    """Returns the losses of some steps."""
    learner = Learner(NETWORKS[network][0]().build(), Sgd.params(learning_rate=0.3).build())
    runtime = Mesh.params(**mesh) if mesh else Local.params()
    program = runtime.build().start(learner, initial_state(learner))
    return np.asarray(program.train(batches(network))["scalars"]["loss/total"])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("mesh", [{"data": 2, "height": 4}, {"height": 8}], ids=["both", "height"])
def test_losses_of_some_steps_are_those_of_one_device(network: str, mesh: dict[str, int]) -> None:
    found, expected = losses(network, **mesh), losses(network)
    assert len(set(expected.tolist())) == STEPS
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_devices_exchange_the_rows_that_the_halo_counts() -> None:
    size, parts, kernel = 32, 4, 5
    model = nn.Chain.params(
        layers=[
            nn.Conv2D.params(dim=1, output_dim=2, kernel=(kernel, 1)),
            nn.ImageHead.params(dim=2, num_classes=3),
        ]
    )
    task = ImageClassification.params(model=model, num_classes=3, image_shape=(size, 3, 1))
    learner = Learner(task.build(), Sgd.params(learning_rate=0.3).build())
    program: Any = (
        Mesh.params(height=parts)
        .build()
        .compile_program(
            learner,
            {
                "images": ((2, size, 3, 1), "float32"),
                "labels": ((2,), "int32"),
                "weights": ((2,), "float32"),
                "rows": ((2,), "int32"),
            },
        )
    )
    found = collectives(parse(program.text), program.mesh)
    sent = [c for c in found if c.kind == "collective-permute"]
    rows = halo(size, num_parts=parts, window=kernel).exchange
    assert rows == (2, 2)
    assert {c.array.shape[1] for c in sent} == {2}, found
    assert len(sent) >= 2, "before the rows of a part, and after"
    assert {c.axes for c in sent} == {("height",)}
