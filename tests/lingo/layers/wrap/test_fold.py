"""Weights that are ready before a loop: the same numbers, nothing computed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import FeedForward, Layer, Lora, Remat, Repeat, Stack, WeightNorm, context
from lingo.layers.context import Call
from lingo.layers.wrap.fold import fold_weights
from lingo.layers.wrap.reweighted import Reweighted

D = 4
X = tf.constant(np.random.default_rng(0).normal(size=(2, 3, D)).astype("f"))
PLAIN = FeedForward.params(hidden_dim=6, use_bias=True)
LORA = Lora.params(layer=PLAIN, rank=2)
FORMS = {
    "no wrapper": Stack.params(layer=PLAIN),
    "inside a stack": Stack.params(layer=LORA, num_layers=2),
    "inside a scan": Repeat.params(layer=LORA, num_layers=2),
    "around a scan": Lora.params(layer=Repeat.params(layer=PLAIN, num_layers=2)),
    "around another": Repeat.params(layer=Lora.params(layer=WeightNorm.params(layer=PLAIN))),
    "inside another": Repeat.params(layer=WeightNorm.params(layer=Remat.params(layer=LORA))),
    "inside and around": WeightNorm.params(layer=Repeat.params(layer=LORA, num_layers=2)),
}


class Doubled(Reweighted):
    """Computes with twice each matrix, and counts how often."""

    def declare(self, matrix: Any) -> None:
        """Nothing is trained in addition."""

    def reweight(self, matrix: Any, w: tf.Tensor) -> tf.Tensor:
        TIMES.append(matrix.name)
        return 2.0 * w


TIMES: list[str] = []


def called(layer: Layer, call: Call) -> tf.Tensor:
    with context.enter_call(call):
        return layer(X)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_a_folded_call_computes_the_same(form: str, dtype: str, draw: Callable) -> None:
    layer = FORMS[form].copy().set(dtype=dtype).build(dim=D)
    call = Call(weights=draw(layer))
    plain, ready = called(layer, call), called(layer, fold_weights(layer, call))
    np.testing.assert_allclose(
        *(tf.cast(y, tf.float32) for y in (plain, ready)), rtol=1e-5, atol=1e-5
    )


def test_what_is_folded_is_not_computed_again(draw: Callable) -> None:
    layer = Doubled.params(layer=PLAIN).build(dim=D)
    TIMES.clear()
    call = fold_weights(layer, Call(weights=draw(layer)))
    assert TIMES == ["w_in", "w_out"]
    for _ in range(3):
        called(layer, call)
    assert TIMES == ["w_in", "w_out"]


def test_weights_become_what_reading_them_gives(draw: Callable) -> None:
    layer = FORMS["inside a scan"].copy().set(dtype="bfloat16").build(dim=D)
    weights = fold_weights(layer, Call(weights=draw(layer))).weights
    assert {where: w.dtype.name for where, w in weights.items()} == {
        where: spec.dtype for where, spec in layer.weights().items()
    }


def test_the_call_that_is_folded_stays_as_it_was(with_weights) -> None:
    layer, weights = with_weights(FORMS["inside a stack"].build(dim=D))
    call = Call(weights=weights)
    before = dict(weights)
    fold_weights(layer, call)
    assert not call.weights_ready
    assert all(call.weights[where] is w for where, w in before.items())
