"""Every wrapper around every layer of images: shapes, FLOPs, numbers and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo import layers as nn
from lingo import models
from lingo.config.lazy import tf
from lingo.config.overrides import apply as apply_overrides
from lingo.config.params import ParamError
from lingo.layers import Chain, Layer, Lora, Remat, WeightNorm, Wrapper, context
from lingo.layers.wrap.reweighted import Reweighted
from lingo.learner.state import Learner, initial_state
from lingo.learner.step import train_step
from lingo.ops import random
from lingo.optim.sgd import Sgd
from params.image.amoebanet import digits
from tasks.image.task import ImageClassification
from tests.lingo.layers.test_conformance import CASES, PICTURES

WITH_MATRICES = (
    models.AmoebaNetHead,
    models.AmoebaNetStem,
    models.AttentionBlock,
    models.AttentionNorm,
    models.BasicBlock,
    models.BottleneckBlock,
    nn.Conv1D,
    nn.Conv2D,
    nn.ConvNorm,
    nn.DepthwiseConv2D,
    models.FactorizedReduction,
    nn.ImageAttention,
    nn.ImageHead,
    models.MBConv,
    models.NormalCell,
    nn.PatchEmbedding,
    nn.PatchHead,
    models.ReductionCell,
    models.ReluConvNorm,
    nn.SeparableConv2D,
    nn.SqueezeExcite,
    nn.TransposedConv2D,
)
WITHOUT_MATRICES = (nn.AveragePool, nn.BatchNorm, nn.GroupNorm, nn.MaxPool)
WRAPPERS = (Remat, Lora, WeightNorm)
Draw = Callable[..., dict[str, Any]]


def shape_of(x: Any) -> Any:
    return tuple(map(shape_of, x)) if isinstance(x, tuple) else tuple(x.shape)


def compute(layer: Layer, weights: dict[str, Any], x: Any) -> tuple[Any, dict[str, Any]]:
    """Returns results and statistics of a training call, and the gradients of all weights."""
    call = {"training": True, "key": random.root_key(1), "rows": tf.range(2)}
    with tf.GradientTape() as tape:
        tape.watch(weights)
        result, sides = context.apply(layer, weights, x, call=call)
        loss = tf.add_n([tf.reduce_sum(tf.sin(v)) for v in tf.nest.flatten(result)])
    return [result, sides.batch_statistics], tape.gradient(loss, weights)


def replaced_weights(wrapped: Layer, weights: dict[str, Any], names: Any) -> dict[str, Any]:
    """Returns what the layer inside computes with, by name."""
    matrices: dict[str, Any] = {}
    if isinstance(wrapped, Reweighted):
        with context.enter_call(context.Call(weights=weights)):
            matrices = wrapped.matrix_values()
    return {name: matrices.get(name, weights[name]) for name in names}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", WITH_MATRICES)
def test_it_computes_what_the_layer_inside_does_with_its_weights(
    kind: type[Layer], wrapper: type[Wrapper], draw: Draw
) -> None:
    plain, case = CASES[kind].params.build(), CASES[kind]
    (x,) = tf.nest.map_structure(tf.constant, tuple(case.inputs.values()))
    wrapped = wrapper.params(layer=case.params).build()
    assert wrapped.output_shape(shape_of(x)) == plain.output_shape(shape_of(x))
    assert wrapped.flops(shape_of(x)) == plain.flops(shape_of(x))
    weights = draw(wrapped)
    found, gradients = compute(wrapped, weights, x)
    expected, _ = compute(plain, replaced_weights(wrapped, weights, plain.weights()), x)
    for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert [where for where, gradient in gradients.items() if gradient is None] == []


@pytest.mark.parametrize("kind", WITHOUT_MATRICES)
def test_what_has_no_matrix_can_be_rematerialized_but_not_reweighted(kind: type[Layer]) -> None:
    params, shape = CASES[kind].params, CASES[kind].inputs["x"].shape
    wrapped = Remat.params(layer=params).build()
    assert wrapped.output_shape(shape) == params.build().output_shape(shape)
    for wrapper in (Lora, WeightNorm):
        with pytest.raises(ParamError, match=rf"no matrix of the {kind.__name__} inside; it has"):
            wrapper.params(layer=params).build()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_network_says_the_shape_of_its_logits(wrapper: type[Wrapper]) -> None:
    network = CASES[Chain].params
    shape = PICTURES["images"].shape
    wrapped = wrapper.params(layer=network).build()
    assert wrapped.output_shape(shape) == network.build().output_shape(shape) == (2, 3)
    assert wrapped.layer_flops(shape) == network.build().layer_flops(shape)


@pytest.mark.parametrize("wrapper", ["Remat", "Lora", "WeightNorm"])
@pytest.mark.parametrize("kind", ["Conv2D", "ReluConvNorm", "Cell", "Chain"])
def test_one_override_wraps_all_of_a_network(kind: str, wrapper: str) -> None:
    cfg = digits(num_filters=8)
    plain = cfg.build()
    (override,) = apply_overrides(cfg, [f"{kind}={wrapper}(layer=_)"])
    assert override.num_matches > 0
    specs = plain.train_input.specs()
    assert cfg.build().task.batch_flops(specs) == plain.task.batch_flops(specs)


@pytest.mark.parametrize("wrapper", ["Remat", "Lora", "WeightNorm"])
def test_a_network_of_wrapped_convolutions_takes_a_step(wrapper: str) -> None:
    layers = [
        nn.ConvNorm.params(dim=1, output_dim=4),
        models.BasicBlock.params(dim=4, output_dim=8, stride=2),
        models.MBConv.params(dim=8, output_dim=8, drop_path_rate=0.1),
        models.AttentionBlock.params(dim=8, output_dim=16, image=(2, 2)),
        nn.ImageHead.params(dim=16, num_classes=3),
    ]
    model = Chain.params(layers=layers)
    task = ImageClassification.params(model=model, num_classes=3, image_shape=(4, 4, 1))
    (override,) = apply_overrides(task, [f"Conv2D={wrapper}(layer=_)"])
    assert override.num_matches >= 4
    learner = Learner(task.build(), Sgd.params(learning_rate=0.1).build())
    state = tf.nest.map_structure(lambda v: tf.constant(np.asarray(v)), initial_state(learner))
    batch = {
        "images": tf.random.stateless_normal([4, 4, 4, 1], (0, 0)),
        "labels": tf.constant([0, 1, 2, 0]),
        "weights": tf.ones([4]),
        "rows": tf.range(4),
    }
    after, report = train_step(learner, state, batch)
    assert report["first_non_finite"] == -1
    changed = [name for name in state.weights if np.any(after.weights[name] != state.weights[name])]
    assert len(changed) > 10
