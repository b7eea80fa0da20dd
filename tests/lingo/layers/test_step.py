"""Layers that compute position by position do, on every such class; and what a layer that defines
no `step` does in decoding.

Axes: B batch, T positions, D model width.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo import layers as nn
from lingo.config.base.types import Wrapped
from lingo.config.lazy import tf
from lingo.inspection.conformance import layer_call
from lingo.inspection.conformance.layer_call import LayerValues
from lingo.layers import Chain, Layer, Linear, Repeat, context, recomputed_step
from lingo.learner.state import initial_value
from tests.lingo.layers.test_conformance import CASES, STACKABLE, B, Case, D, T

POSITIONWISE = [cls for cls in CASES if cls.positionwise and cls.step is Layer.step]
CHAIN = [Linear.params(dim=D, output_dim=5), Linear.params(dim=5, output_dim=D)]
EXAMPLES = {cls.__name__: CASES[cls] for cls in POSITIONWISE} | {
    "Chain": Case(Chain.params(layers=CHAIN), CASES[Linear].inputs),
    "PipelinedChain": Case(
        nn.PipelinedChain.params(layers=CHAIN, num_stages=2, num_micro_batches=2),
        CASES[Linear].inputs,
    ),
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_positionwise_layer_ignores_all_other_positions(name: str, draw: Callable) -> None:
    case = EXAMPLES[name]
    layer = case.params.build()
    call, weights = {"state": states(layer)}, draw(layer)

    def compute(inputs: dict[str, Any]) -> np.ndarray:
        return np.asarray(context.apply(layer, weights, call=call, **inputs)[0])

    plain = compute(case.inputs)
    for position in range(T):
        moved = compute({k: move_others(v, position) for k, v in case.inputs.items()})
        np.testing.assert_array_equal(moved[:, position], plain[:, position])
        others = np.delete(moved, position, axis=1) == np.delete(plain, position, axis=1)
        assert not others.all(), "the others have changed"


def move_others(x: np.ndarray, position: int) -> np.ndarray:
    """Rolls all positions but one, [B, T, ...]; a table, [V, D], stays as it is."""
    if x.shape[:2] != (B, T):
        return x
    moved = np.roll(x[::-1], 1, axis=1)
    moved[:, position] = x[:, position]
    return moved


def states(layer: Layer) -> dict[str, tf.Tensor]:
    return {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.states().items()}


def compute_by_steps(layer: Layer, weights: Any, x: Any, sizes: list[int], **inputs: Any) -> Any:
    """Computes x [B, T, D] in chunks of these sizes, by the layer's steps."""
    values = LayerValues(weights, states(layer), {})
    return layer_call.compute_by_steps(layer, values, x, sizes, **inputs)


@pytest.mark.parametrize("name", STACKABLE)
def test_steps_of_any_size_compute_what_the_whole_does(name: str, draw: Callable) -> None:
    case = STACKABLE[name]
    params = case.params.copy()
    params.all(nn.MoE).set(capacity_factor=4.0)  # no token is dropped
    params.all(nn.SwitchRouter).set(priority="position")
    layer = params.build()
    weights, x = draw(layer), tf.constant(case.inputs["x"][:, :T])
    whole, _ = context.apply(layer, weights, x, call={"state": states(layer)})
    for sizes in ([1, 2], [2, 1]):
        steps = compute_by_steps(layer, weights, x, sizes)
        np.testing.assert_allclose(steps, whole, rtol=1e-4, atol=1e-5)


# ---- a layer without a step ---------------------------------------------------------------------


class Mean(Layer):
    """The mean of a position and those before it in its document; has no `step`."""

    def __call__(self, x: Any, *, inputs: nn.CallInputs = nn.NO_INPUTS) -> Any:
        positions = tf.range(x.shape[1])
        seen = (positions <= positions[:, None])[None]
        seen &= inputs.segments[:, None, :] == inputs.segments[:, :, None]
        shares = tf.cast(seen, tf.float32)
        shares /= tf.reduce_sum(shares, axis=-1, keepdims=True)
        return shares @ x + tf.cast(inputs.position_ids, tf.float32)[..., None]


class Around(Layer):
    """Twice what a layer computes; mixes no positions by itself, and has no `step`."""

    layer: Wrapped  # what is doubled

    positionwise = True

    def setup(self) -> None:
        self.layer = self.p.layer.build()

    def __call__(self, x: Any, *, inputs: nn.CallInputs = nn.NO_INPUTS) -> Any:
        return 2 * self.layer(x, inputs=inputs)


class Shifted(nn.Attention):
    """Adds one to attention, in a way that its inherited `step` does not know."""

    def __call__(self, x: Any, *, inputs: nn.CallInputs = nn.NO_INPUTS) -> Any:
        return super().__call__(x, inputs=inputs) + 1


X = np.random.default_rng(0).normal(size=[B, T, D]).astype(np.float32)
DOCUMENTS = {"position_ids": np.arange(3, 3 + T, dtype=np.int32) + np.zeros([B, 1], np.int32)}
ATTENTION = nn.Attention.params(dim=D, num_heads=2, positions=nn.Rotary)
WITHOUT = {
    "no step": Mean.params(),
    "no step, in a scan": Repeat.params(layer=Mean.params(), num_layers=2),
    "a wrapper around it": nn.Remat.params(layer=Mean.params()),
    "a container of a layer that steps": Around.params(layer=ATTENTION),
    "a step of another computation": Shifted.params(dim=D, num_heads=2),
}


@pytest.mark.parametrize("name", WITHOUT)
@pytest.mark.parametrize("sizes", [[1, 1, 1], [2, 1]])
def test_a_causal_layer_without_a_step_computes_all_positions_again(name, sizes, draw):
    layer = WITHOUT[name].build()
    weights, segments = draw(layer), np.ones([B, T], np.int32)
    whole, _ = context.apply(layer, weights, X, **DOCUMENTS, segments=segments)
    steps = compute_by_steps(layer, weights, X, sizes, **DOCUMENTS)
    np.testing.assert_allclose(steps, whole, rtol=1e-5, atol=1e-5)


def test_a_layer_around_positionwise_ones_computes_new_positions_only(draw: Callable) -> None:
    layer = Around.params(layer=nn.Lora.params(layer=nn.FeedForward.params(dim=D), rank=1)).build()
    weights = draw(layer)
    y, sides = context.apply(layer, weights, X[:, :1], 5, method="step")
    np.testing.assert_allclose(y, context.apply(layer, weights, X[:, :1])[0])
    assert not sides.caches


def test_a_layer_without_a_step_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    recomputed_step._report.cache_clear()
    layer = nn.Stack.params(layer=Mean.params(), num_layers=2).build()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            compute_by_steps(layer, {}, X, [T], **DOCUMENTS)
    assert [r.getMessage().split(":")[0] for r in caplog.records] == ["layers/*"]
    assert "computes Mean again for all positions" in caplog.text
    assert "`positionwise = True`" in caplog.text


class Mixing(Layer):
    """Adds the mean of its document; with `causal` that of the positions so far."""

    causal: bool = False  # whether a position sees no later one

    def __call__(self, x: Any, *, inputs: nn.CallInputs = nn.NO_INPUTS) -> Any:
        weights = tf.cast(inputs.segments > 0, x.dtype)[:, None, :]
        if self.p.causal:
            weights *= tf.linalg.band_part(tf.ones([x.shape[1]] * 2, x.dtype), -1, 0)
        return x + weights @ x / tf.reduce_sum(weights, axis=-1, keepdims=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("chunk", "room"), [(1, 4), (2, 3), (2, 4)])
def test_the_first_step_tells_whether_a_layer_is_causal(
    chunk: int, room: int, causal: bool, dtype: Any
) -> None:
    layer = nn.Stack.params(layer=Mixing.params(causal=causal)).build()
    x = tf.cast(X[:, :chunk], dtype)
    _, sides = context.apply(layer, {}, x, 0, method="step", call={"decode_length": room})
    assert {k: v.numpy().tolist() for k, v in sides.is_causal.items()} == {"layers/0": [causal] * B}
    call = {"decode_length": room, "caches": sides.caches}
    _, sides = context.apply(layer, {}, x[:, :1], chunk, method="step", call=call)
    assert not sides.is_causal


class OneHotMean(Layer):
    """Adds the mean of what the tokens of all positions stand for."""

    def __call__(self, x: Any, *, inputs: nn.CallInputs = nn.NO_INPUTS) -> Any:
        return x + tf.reduce_mean(tf.one_hot(inputs.token_ids, D, dtype=x.dtype), 1, keepdims=True)


def test_other_tokens_at_later_positions_tell_it_too() -> None:
    inputs = nn.CallInputs(token_ids=tf.ones([B, 1], tf.int32))
    call = {"decode_length": 4}
    _, sides = context.apply(
        OneHotMean.params().build(),
        {},
        tf.constant(X[:, :1]),
        0,
        method="step",
        call=call,
        inputs=inputs,
    )
    assert sides.is_causal[""].numpy().tolist() == [0] * B


class MeanOfAll:
    """What a mixin computes, which is no layer itself."""

    def __call__(self, x: Any, *, inputs: nn.CallInputs = nn.NO_INPUTS) -> Any:
        del inputs
        return x + tf.reduce_mean(x, axis=1, keepdims=True)


def test_what_a_mixin_computes_is_not_positionwise() -> None:
    class Mixed(MeanOfAll, nn.Dropout):
        pass

    assert nn.Dropout.positionwise
    assert not Mixed.positionwise
    assert Mixed.step is Layer.step


def test_a_step_that_needs_room_says_so() -> None:
    with pytest.raises(RuntimeError, match="Mean: a layer without `step` needs decode_length"):
        context.apply(Mean.params().build(), {}, tf.constant(X), 0, method="step")
