"""Weights that are ready before a loop: the same numbers, nothing computed again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import (
    FeedForward,
    Layer,
    Lora,
    MoE,
    PassiveAsymQDomain,
    Quantized,
    Remat,
    Repeat,
    SoftmaxHead,
    Stack,
    TopNRouter,
    WeightNorm,
    WeightQDomain,
    context,
)
from lingo.layers.context import Call
from lingo.layers.quantization.fold import dequantize_weights, fold_weights, quantize_weights
from lingo.layers.wrap.reweighted import Reweighted
from tasks.lm.model import LanguageModel

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


# ---- weights of 8 bits

FFN = FeedForward.params(hidden_dim=6, gated=True)
WEIGHTS = Quantized.params(layer=FFN, domain=WeightQDomain)
EIGHT_BITS = {
    "no wrapper": Stack.params(layer=FFN, num_layers=2),
    "weights alone": Stack.params(layer=WEIGHTS, num_layers=2),
    "around a scan": WEIGHTS.copy().set(layer=Repeat.params(layer=FFN, num_layers=2)),
    "four bits": Repeat.params(layer=WEIGHTS.copy().set(domain=WeightQDomain.params(bits=4))),
    "measured ranges": Repeat.params(layer=Quantized.params(layer=FFN)),
    "around another": Stack.params(layer=Quantized.params(layer=LORA, domain=WeightQDomain)),
    "vectorized": MoE.params(expert=WEIGHTS, num_experts=2, router=TopNRouter),
}


@pytest.mark.parametrize(
    ("form", "dtype"),
    [*((form, "float32") for form in EIGHT_BITS), ("around a scan", "bfloat16")],
)
def test_weights_of_8_bits_compute_what_rounded_weights_do(
    form: str, dtype: str, draw: Callable
) -> None:
    layer = EIGHT_BITS[form].copy().set(dtype=dtype).build(dim=D)
    weights = {where: tf.constant(w) for where, w in draw(layer).items()}
    state = {where: tf.fill(s.program_shape, 1.5) for where, s in layer.states().items()}
    plain = layer
    if form == "no wrapper":  # of equal paths
        plain = Quantized.params(layer=EIGHT_BITS[form], domain=WeightQDomain)
        plain = plain.copy().set(dtype=dtype).build(dim=D)

    @tf.function
    def outputs(weights: Any, state: Any) -> Any:
        stored = quantize_weights(layer, Call(weights=weights, state=state))
        ready = Call(weights=stored, state=state, weights_ready=True)
        rows = tf.range(2)
        return (
            called(plain, Call(weights=weights, state=state, rows=rows)),
            called(layer, dataclasses.replace(ready, rows=rows)),
            stored,
        )

    expected, found, stored = outputs(weights, state)
    np.testing.assert_array_equal(*(tf.cast(y, tf.float32) for y in (expected, found)))
    levels = {where for where, value in stored.items() if value.dtype == tf.int8}
    names = {where.rpartition("/")[2] for where in levels}
    assert names == ({"w_in", "w_gate", "w_out"} if "another" not in form else {"w_in", "w_out"})
    assert levels == {where.removesuffix(":scale") for where in stored if ":scale" in where}
    if form == "four bits":
        assert max(int(tf.reduce_max(stored[where])) for where in levels) == 7


@pytest.mark.parametrize(
    "domain",
    [PassiveAsymQDomain.params(per_channel=False), PassiveAsymQDomain.params(bits=12)],
    ids=["one range", "12 bits"],
)
def test_weights_that_a_domain_rounds_otherwise_are_rounded_once_more(
    domain: Any, draw: Callable
) -> None:
    layer = Quantized.params(layer=FFN, domain=domain).build(dim=D)
    call = Call(weights=draw(layer))
    stored, rounded = quantize_weights(layer, call), fold_weights(layer, call).weights
    for where, value in dequantize_weights(stored).items():
        half = np.abs(rounded[where]).max(0) / 254
        assert (np.abs(value - rounded[where]) <= 1.001 * half).all()


def test_weights_that_are_ready_are_not_rounded_again(draw: Callable) -> None:
    layer = Lora.params(layer=FFN, rank=2).build(dim=D)
    with pytest.raises(ValueError, match="are ready: wrappers would be applied again"):
        quantize_weights(layer, fold_weights(layer, Call(weights=draw(layer))))


def test_wrappers_compute_once_what_becomes_int8(draw: Callable) -> None:
    layer = Doubled.params(layer=PLAIN).build(dim=D)
    TIMES.clear()
    quantize_weights(layer, Call(weights=draw(layer)))
    assert TIMES == ["w_in", "w_out"]


def test_heads_routers_and_embeddings_are_not_stored_in_8_bits(draw: Callable) -> None:
    model = LanguageModel.params(dim=D, vocab_size=5, stack=Stack.params(layer=FFN))
    layer = model.copy().set(head=SoftmaxHead).build()
    weights = draw(layer)
    stored = quantize_weights(layer, Call(weights=weights))
    kept = {where for where in weights if stored[where].dtype == tf.float32}
    assert kept == {"embedding/table", "head/w", "norm/scale"}
    sizes = {where: np.asarray(value).nbytes for where, value in stored.items()}
    assert sum(n for w, n in sizes.items() if w.startswith("stack") and ":" not in w) == sum(
        weights[where].numpy().nbytes // 4 for where in weights if where.startswith("stack")
    )
