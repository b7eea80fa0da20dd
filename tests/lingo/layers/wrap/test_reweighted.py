"""Layers whose weights are computed: what from, what is declared, inside and around scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.overrides import apply as apply_overrides
from lingo.config.params import ParamError
from lingo.layers import Attention, Embedding, Layer, Linear, Lora, Remat, Repeat, Stack, WeightNorm
from lingo.layers.context import apply
from lingo.layers.feed_forward import FeedForward
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.learner.state import initial_value
from params.lm.source import tiny

D, F = 4, 6
X = np.random.default_rng(0).normal(size=(2, 3, D)).astype("f")
Draw = Callable[..., dict[str, Any]]


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def initial(layer: Layer) -> dict[str, np.ndarray]:
    return {where: initial_value(spec, 0) for where, spec in layer.weights().items()}


def test_lora_adds_the_product_of_two_thin_matrices(draw: Draw) -> None:
    plain = Linear.params(dim=D, output_dim=F)
    layer = Lora.params(layer=plain, rank=2, alpha=6.0).build()
    w = draw(layer)
    assert {k: v.shape for k, v in w.items()} == {
        "w": (D, F),
        "w_lora_a": (D, 2),
        "w_lora_b": (2, F),
    }
    whole = w["w"] + 3.0 * w["w_lora_a"] @ w["w_lora_b"]
    close(apply(layer, w, X)[0], apply(plain.build(), {"w": whole}, X)[0])


def test_lora_changes_nothing_at_first() -> None:
    plain = FeedForward.params(dim=D, hidden_dim=F)
    layer = Lora.params(layer=plain).build()
    w = initial(layer)
    close(apply(layer, w, X)[0], apply(plain.build(), w, X)[0])
    assert w["w_in_lora_a"].std() > 0


def test_heads_are_outputs_of_one_projection_and_inputs_of_another() -> None:
    layer = Lora.params(layer=Attention.params(dim=D, num_heads=2), rank=1).build()
    shapes = {where: spec.shape for where, spec in layer.weights().items()}
    assert shapes["w_query_lora_a"] == (D, 1)
    assert shapes["w_query_lora_b"] == (1, 2, D // 2)
    assert shapes["w_output_lora_a"] == (2, D // 2, 1)
    assert shapes["w_output_lora_b"] == (1, D)


@pytest.mark.parametrize("kind", [Lora, WeightNorm])
def test_biases_are_no_matrices_however_many_axes_they_have(kind: type) -> None:
    plain = Attention.params(dim=D, num_heads=2, use_bias=True)
    added = set(kind.params(layer=plain).build().weights()) - set(plain.build().weights())
    assert added
    assert all(name.startswith("w_") for name in added)


def test_a_pattern_chooses_matrices_by_their_whole_name() -> None:
    layer = Lora.params(layer=TransformerLayer.params(dim=D), pattern=r"ffn/w_(in|out)")
    layer.layer.attention.num_heads = 2
    added = {name for name in layer.build().weights() if "lora" in name}
    assert added == {f"ffn/w_{n}_lora_{ab}" for n in ("in", "out") for ab in "ab"}


def test_weight_norm_separates_length_and_direction(draw: Draw) -> None:
    plain = Linear.params(dim=D, output_dim=F, use_bias=True)
    layer = WeightNorm.params(layer=plain).build()
    w = draw(layer)
    assert set(w) == {"w", "b", "w_scale"}
    lengths = np.linalg.norm(w["w"], axis=0)
    whole = {"w": w["w_scale"] * w["w"] / lengths, "b": w["b"]}
    close(apply(layer, w, X)[0], apply(plain.build(), whole, X)[0])
    longer = {**w, "w": 7 * w["w"]}
    close(apply(layer, w, X)[0], apply(layer, longer, X)[0])


def test_weight_norm_keeps_the_expected_length_at_first() -> None:
    table = WeightNorm.params(layer=Embedding.params(vocab_size=500, dim=D)).build()
    w = {k: tf.constant(v) for k, v in initial(table).items()}
    ids = np.arange(500)[None]
    plain = np.linalg.norm(w["table"], axis=0)
    np.testing.assert_allclose(np.linalg.norm(apply(table, w, ids)[0][0], axis=0), plain, rtol=0.2)


@pytest.mark.parametrize("kind", [Lora, WeightNorm])
def test_around_a_scan_inside_a_scan_and_around_layers_it_is_the_same(kind, draw):
    plain = FeedForward.params(dim=D, hidden_dim=F, use_bias=True)
    inside = kind.params(layer=plain)
    forms = [
        Stack.params(layer=inside, num_layers=2),
        Repeat.params(layer=inside, num_layers=2),
        kind.params(layer=Repeat.params(layer=plain, num_layers=2)),
        Repeat.params(layer=Remat.params(layer=inside), num_layers=2),
    ]
    layers = [form.build(dim=D) for form in forms]
    stacked = draw(layers[1])
    flat = {
        name.replace("[0:2]", str(i)): value[i] for name, value in stacked.items() for i in range(2)
    }
    expected, _ = apply(layers[0], flat, X)
    for layer in layers[1:]:
        assert set(layer.weights()) == set(stacked)
        close(apply(layer, stacked, tf.constant(X))[0], expected)


def test_every_method_of_the_layer_inside_is_there(draw: Draw) -> None:
    plain = Embedding.params(vocab_size=5, dim=D)
    layer = Lora.params(layer=Remat.params(layer=plain), rank=1).build()
    w = draw(layer)
    whole = {"table": w["table"] + 8.0 * w["table_lora_a"] @ w["table_lora_b"]}
    close(apply(layer, w, method="vectors")[0], whole["table"])
    assert layer.flops([2, 3]) == 0
    with pytest.raises(AttributeError, match="no attribute 'vector'"):
        _ = layer.vector


def test_one_override_puts_it_around_every_layer_of_a_class() -> None:
    cfg = tiny(model_dim=16, num_layers=1)
    apply_overrides(cfg, ["Attention=Lora(layer=_, rank=2)", "Embedding=WeightNorm(layer=_)"])
    names = set(cfg.build().task.weights())
    assert "model/stack/layers/0/attention/w_value_lora_b" in names
    assert "model/embedding/table_scale" in names


def test_a_pattern_cannot_choose_some_layers_of_a_scan() -> None:
    scan = Repeat.params(layer=FeedForward.params(dim=D), num_layers=2)
    with pytest.raises(ParamError, match=r"matches some of the layers stacked in layers/\[0:2\]"):
        Lora.params(layer=scan, pattern="layers/0/.*").build()
