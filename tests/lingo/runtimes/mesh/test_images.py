"""Networks of images learn on a mesh what they learn on one device, with whole and split images."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from lingo import layers as nn
from lingo import models
from lingo.config.params import Params
from lingo.learner.state import Learner, initial_state
from lingo.optim import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from tasks.image.task import ImageClassification

B, H, W, STEPS = 6, 8, 5, 2
MESHES = {
    "parts of a batch": Mesh.params(data=2, model=2),
    "parts of images": Mesh.params(data=2, sequence=2, activation_rules={"height": ["sequence"]}),
}


def convolutions() -> list[Params]:
    """Returns convolutions of every kind, one after the other."""
    return [
        nn.ConvNorm.params(dim=1, output_dim=4),
        nn.DepthwiseConv2D.params(dim=4, stride=2),
        nn.TransposedConv2D.params(dim=4, output_dim=4),
        nn.SeparableConv2D.params(dim=4, output_dim=4, dilation=2),
        nn.ImageHead.params(dim=4, num_classes=3, dropout_rate=0.1),
    ]


def attention() -> list[Params]:
    """Returns a block of BoTNet, then the parts of a Vision Transformer."""
    layer = nn.TransformerLayer.params(dim=8, norm=nn.LayerNorm)
    layer.attention.set(num_heads=2, mask=nn.Bidirectional, use_bias=True)
    block = models.AttentionBlock.params(dim=1, output_dim=8, image=(H, W))
    block.all(nn.BatchNorm).set(statistics_over=1)
    block.all(nn.ImageAttention).set(num_heads=2)
    return [
        block,
        nn.PatchEmbedding.params(dim=8, output_dim=8, patch=1),
        nn.LearnedImagePositions.params(dim=8, grid=(H, W)),
        nn.ClassToken.params(dim=8),
        nn.Stack.params(layer=layer),
        nn.LayerNorm.params(dim=8),
        nn.PatchHead.params(dim=8, num_classes=3, hidden_dim=4),
    ]


NETWORKS = {"convolutions": convolutions, "attention": attention}


def train(network: str, runtime: Params) -> dict[str, np.ndarray]:
    """Returns the weights after a few steps."""
    model = nn.Chain.params(layers=NETWORKS[network]())
    task = ImageClassification.params(
        model=model, num_classes=3, image_shape=(H, W, 1), flip_rate=0.5
    )
    learner = Learner(task.build(), Sgd.params(learning_rate=0.3).build())
    draw = np.random.default_rng(0)
    batches = {
        "images": draw.normal(1.0, 1.0, [STEPS, B, H, W, 1]).astype("f"),
        "labels": draw.integers(0, 3, [STEPS, B], np.int32),
        "weights": np.ones([STEPS, B], "f"),
        "rows": np.tile(np.arange(B, dtype=np.int32), [STEPS, 1]),
    }
    program = runtime.build().start(learner, initial_state(learner))
    program.train(batches)
    return {name: np.asarray(value) for name, value in program.state().weights.items()}


@functools.cache
def on_one_device(network: str) -> dict[str, np.ndarray]:
    return train(network, Local.params())


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("mesh", MESHES)
def test_weights_after_some_steps_are_those_of_one_device(mesh: str, network: str) -> None:
    expected, found = on_one_device(network), train(network, MESHES[mesh])
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
