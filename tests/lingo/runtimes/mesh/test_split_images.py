"""Images whose rows and columns are split over devices: results and gradients are those of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lingo import layers as nn
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import context
from lingo.layers.window import annotate_image
from lingo.learner.state import Learner
from lingo.mesh.hlo.collectives import collectives
from lingo.mesh.hlo.module import parse
from lingo.mesh.rules import RECIPES, Table
from lingo.mesh.split import halo
from lingo.mesh.topology import topology
from lingo.optim.sgd import Sgd
from lingo.runtimes.layout import Layout
from lingo.runtimes.mesh.annotation import AxisRules
from lingo.runtimes.mesh.engine import device_mesh, engine
from lingo.runtimes.mesh.mesh import Mesh
from tasks.image.task import ImageClassification

B, W, C = 4, 5, 2


def conv(**fields: Any) -> Params:
    return nn.Conv2D.params(dim=C, output_dim=3, **fields)


def conv3d(**fields: Any) -> Params:
    return nn.Conv3D.params(dim=C, output_dim=3, **fields)


LAYERS: dict[str, Params] = {
    "conv": conv(use_bias=True),
    "stem": conv(kernel=(7, 7), stride=2),
    "strided": conv(stride=2),
    "strides of 3": conv(stride=3),
    "pointwise": conv(kernel=(1, 1), stride=2),
    "inside": conv(padding="VALID", kernel=(4, 2), stride=3),
    "centered, strides of 2": conv(padding="CENTERED", stride=2),
    "centered, large": conv(padding="CENTERED", kernel=(7, 5), stride=2),
    "depthwise, centered": nn.DepthwiseConv2D.params(dim=C, stride=2, padding="CENTERED"),
    "pool, centered": nn.MaxPool.params(window=(3, 3), stride=2, padding="CENTERED"),
    "inside, strides of 2": conv(padding="VALID", stride=2),
    "dilated": conv(dilation=2, padding="VALID"),
    "dilated, same size": conv(dilation=3),
    "depthwise": nn.DepthwiseConv2D.params(dim=C, stride=2, multiplier=2),
    "depthwise inside": nn.DepthwiseConv2D.params(dim=C, stride=3, padding="VALID"),
    "depthwise dilated": nn.DepthwiseConv2D.params(dim=C, dilation=2),
    "transposed": nn.TransposedConv2D.params(dim=C, output_dim=3),
    "transposed inside": nn.TransposedConv2D.params(dim=C, output_dim=3, padding="VALID"),
    "resize": nn.Resize.params(size=(4, 7)),
    "nearest": nn.Resize.params(size=(20, 10), method="nearest"),
    "batch norm": nn.BatchNorm.params(dim=C, statistics_over=2),
    "group norm": nn.GroupNorm.params(dim=C, num_groups=1),
    "squeeze and excite": nn.SqueezeExcite.params(dim=C),
    "head": nn.ImageHead.params(dim=C, num_classes=3),
} | {
    f"{pool.__name__}, {window}, {stride}, {padding}": pool.params(
        window=(window, window), stride=stride, padding=padding
    )
    for pool in (nn.AveragePool, nn.MaxPool)
    for window, stride, padding in (
        (3, 1, "SAME"),
        (3, 2, "SAME"),
        (3, 3, "SAME"),
        (2, 2, "VALID"),
        (3, 2, "VALID"),
        (2, 3, "VALID"),
    )
}
VOLUME_LAYERS: dict[str, Params] = {
    "conv": conv3d(use_bias=True),
    "strided": conv3d(stride=2),
    "strides of 3": conv3d(stride=3),
    "pointwise": conv3d(kernel=(1, 1, 1), stride=2),
    "inside": conv3d(padding="VALID"),
    "inside, strides of 2": conv3d(padding="VALID", stride=2),
    "inside, side by side": conv3d(padding="VALID", kernel=(2, 3, 2), stride=3),
    "dilated": conv3d(dilation=2),
    "dilated inside": conv3d(dilation=2, padding="VALID", kernel=(2, 3, 2)),
    "max": nn.MaxPool3D.params(),
    "max of 3": nn.MaxPool3D.params(window=3),
    "enlarging": nn.UpConv3D.params(dim=C, output_dim=3),
}
MESHES = {
    "rows of half of a batch": ({"data": 2, "height": 4}, 10),
    "more devices than rows": ({"height": 8}, 7),
    "rows and columns": ({"height": 4, "width": 2}, 8),
    "rows and columns of half of a batch": ({"data": 2, "height": 2, "width": 2}, 8),
    "two devices with the same rows": ({"height": 4, "model": 2}, 10),
}
VOLUME_MESHES: dict[str, tuple[dict[str, int], Table]] = {
    "rows of half of a batch": ({"data": 2, "height": 4}, {}),
    "rows and columns": ({"height": 4, "width": 2}, {}),
    "more devices than rows": ({"height": 8}, {}),
    "two devices with the same rows": ({"height": 4, "model": 2}, {}),
    "slices and rows": ({"model": 4, "height": 2}, {"depth": ("model",)}),
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
    """A layer of images or volumes that come split."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self._layer(annotate_image(x))


def compare(
    cases: dict[str, Params],
    shape: Sequence[int],
    sizes: dict[str, int],
    more_rules: Table,
) -> None:
    """Asserts that layers of images of a shape compute the same on a mesh as on one device."""
    mesh = topology(sizes)
    table = RECIPES["1d"]
    table = table._replace(activations={**table.activations, **more_rules})
    rules = AxisRules(Layout(mesh, table, *({},) * 8))
    layers = {name: params.build() for name, params in cases.items()}
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
    x = draw.normal(size=shape).astype("f")
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


@pytest.mark.parametrize("case", MESHES)
def test_layers_and_their_gradients_are_those_of_one_device(case: str) -> None:
    sizes, height = MESHES[case]
    compare(LAYERS, [B, height, W, C], sizes, {})


@pytest.mark.parametrize("case", VOLUME_MESHES)
def test_layers_of_volumes_and_their_gradients_are_those_of_one_device(case: str) -> None:
    sizes, more_rules = VOLUME_MESHES[case]
    compare(VOLUME_LAYERS, [2, 6, 9, W, C], sizes, more_rules)


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
