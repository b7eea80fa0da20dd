"""Self-attention: against NumPy and Keras, packed and alone, at once and in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from tensorflow.python.eager import context as eager

from lingo.config.lazy import tf
from lingo.layers import Alibi, Attention, RelativeBias, Repeat, RmsNorm, Rotary
from lingo.layers.context import apply
from lingo.layers.sequence.mask import Bidirectional, Causal, LocalWindow, Prefix
from lingo.ops import random

X = np.random.default_rng(0).normal(size=[2, 7, 8]).astype(np.float32)  # [B, T, D]
SMALL = Attention.params(dim=8, num_heads=2)
TRAINING = {"training": True, "key": random.root_key(0), "rows": tf.range(2)}
T5 = RelativeBias.params(num_buckets=4, max_distance=5)
LOCAL = LocalWindow.params(window=2)
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary": {"positions": Rotary},
    "half_rotary": {"positions": Rotary.params(fraction=0.5)},
    "relative": {"positions": T5},
    "alibi": {"positions": Alibi},
    "multi_query": {"num_heads": 4, "num_kv_heads": 1, "positions": Rotary},
    "grouped": {"num_heads": 4, "num_kv_heads": 2, "positions": T5},
    "qk_norm": {"qk_norm": RmsNorm, "query_scale": 1.0, "positions": Rotary},
    "capped": {"logit_cap": 2.0, "positions": T5},
    "biases": {"use_bias": True, "scale_features": True},
    "local": {"mask": LOCAL, "positions": Rotary},
    "local_relative": {"mask": LOCAL, "positions": T5, "num_heads": 4, "num_kv_heads": 2},
    "wide_window": {"mask": LocalWindow.params(window=5)},
    "itself": {"mask": LocalWindow.params(window=1)},
    "prefix": {"mask": Prefix, "positions": RelativeBias.params(num_buckets=8)},
}
over_forms = pytest.mark.parametrize("form", FORMS)


def small(form: str = "plain", **values: Any) -> Any:
    return SMALL.copy().set(**FORMS[form] | values).build()


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def in_chunks(
    layer: Any, weights: Any, x: np.ndarray, sizes: list[int], room: int = 0, **inputs: Any
) -> np.ndarray:
    """Calls `step` for chunk after chunk, with the caches that the one before handed out."""
    caches = layer.empty_caches(batch_size=len(x), length=x.shape[1] + room)
    outputs, start = [], 0
    for size in sizes:
        part = slice(start, start + size)
        now = {name: value[:, part] for name, value in inputs.items()}
        call = {"caches": caches}
        y, sides = apply(layer, weights, x[:, part], start, method="step", call=call, **now)
        caches, start = sides.caches, part.stop
        outputs.append(y)
    return np.concatenate(outputs, axis=1)


@pytest.mark.parametrize("form", ["relative", "local_relative", "prefix"])
def test_a_table_that_is_given_stands_for_one_of_its_own(form: str, draw: Callable) -> None:
    own, positions = small(form), FORMS[form]["positions"].copy().set(shared=True)
    shared = small(form, positions=positions)
    weights = draw(own)
    table = weights.pop("positions/table")
    assert weights.keys() == shared.weights().keys()
    expected, _ = apply(own, weights | {"positions/table": table}, X)
    close(apply(shared, weights, X, position_table=table)[0], expected)
    close(in_chunks(shared, weights, X, [3, 1, 3], position_table=Given(table)), expected)


class Given:
    """An input of `in_chunks` that is the same for every chunk."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, part: Any) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("num_kv_heads", "mask", "use_bias"),
    [(1, Causal, False), (2, Causal, True), (4, Bidirectional, False), (4, Causal, True)],
)
def test_equals_keras(num_kv_heads, mask, use_bias, with_weights):
    fields = {"num_kv_heads": num_kv_heads, "mask": mask, "use_bias": use_bias}
    layer, weights = with_weights(small(num_heads=4, head_dim=3, **fields))
    oracle = keras.layers.GroupQueryAttention(3, 4, num_kv_heads, use_bias=use_bias)
    oracle.build(X.shape, X.shape)
    parts = ("w", "b") if use_bias else ("w",)
    names = ("query", "key", "value", "output")
    oracle.set_weights([weights[f"{part}_{name}"] for name in names for part in parts])
    close(apply(layer, weights, X)[0], oracle(X, X, use_causal_mask=mask is Causal))


def test_queries_and_keys_are_normalized_before_they_turn(with_weights) -> None:
    layer, weights = with_weights(small("qk_norm", qk_norm=RmsNorm.params(epsilon=0.0)))
    expected, _ = apply(layer, weights, X)
    larger = {k: 3 * weights[k] for k in ("w_query", "w_key")}
    close(apply(layer, weights | larger, X)[0], expected)
    assert {"query_norm/scale", "key_norm/scale"} <= set(weights)


def test_the_scale_multiplies_the_logits(draw: Callable) -> None:
    weights = draw(small())
    twice = weights | {"w_query": 2 * weights["w_query"]}
    close(apply(small(query_scale=1.0), weights, X)[0], apply(small(), twice, X)[0])


def test_the_bias_of_the_output_may_be_left_out(with_weights) -> None:
    layer, weights = with_weights(small(use_bias=True, use_output_bias=False))
    assert {name for name in weights if "b_" in name} == {"b_query", "b_key", "b_value"}
    zero = weights | {"b_output": tf.zeros([layer.p.dim])}
    close(apply(layer, weights, X)[0], apply(small(use_bias=True), zero, X)[0])


def test_a_feature_scale_of_zero_is_one_and_scales_features_of_queries(with_weights) -> None:
    layer, weights = with_weights(small(scale_features=True))
    zero = weights | {"feature_scale": tf.zeros([4])}
    close(apply(layer, zero, X)[0], apply(small(), weights, X)[0])
    factor = np.log1p(np.exp(weights["feature_scale"])) / np.log(2)
    scaled = weights | {"w_query": weights["w_query"] * factor}
    close(apply(layer, weights, X)[0], apply(small(), scaled, X)[0])


def test_a_large_cap_changes_nothing_and_a_small_one_makes_all_logits_alike(draw: Callable) -> None:
    weights = draw(small())
    close(apply(small(logit_cap=1e6), weights, X)[0], apply(small(), weights, X)[0])
    alike = apply(small(), weights | {"w_query": tf.zeros([8, 2, 4])}, X)[0]
    close(apply(small(logit_cap=1e-6), weights, X)[0], alike)


@over_forms
@pytest.mark.parametrize("bidirectional", [False, True])
def test_two_documents_in_a_row_see_what_they_see_alone(form, bidirectional, with_weights):
    layer, weights = with_weights(small(form, **{"mask": Bidirectional} if bidirectional else {}))
    packed, _ = apply(
        layer,
        weights,
        X,
        segments=np.array([[1, 1, 2, 2, 2, 2, 0]] * 2, np.int32),
        position_ids=np.array([[0, 1, 0, 1, 2, 3, 0]] * 2, np.int32),
    )
    close(packed[:, :2], apply(layer, weights, X[:, :2])[0])
    close(packed[:, 2:6], apply(layer, weights, X[:, 2:6])[0])
    assert np.isfinite(packed).all()


@pytest.mark.parametrize("form", [f for f, v in FORMS.items() if v.get("positions")])
def test_positions_matter_only_by_their_differences(form: str, draw: Callable) -> None:
    layer = small(form)
    weights, numbers = draw(layer), np.arange(7, dtype=np.int32)[None]
    expected, _ = apply(layer, weights, X)
    close(apply(layer, weights, X, position_ids=numbers + 100)[0], expected)


@pytest.mark.parametrize("form", ["rotary", "half_rotary", "local_relative"])
def test_positions_need_not_follow_each_other(form: str, draw: Callable) -> None:
    layer = small(form)
    weights, numbers = draw(layer), np.arange(7, dtype=np.int32)[None]
    expected, _ = apply(layer, weights, X)
    assert not np.allclose(apply(layer, weights, X, position_ids=2 * numbers)[0], expected)


class Gaps(Causal):
    """A mask for position ids that need not follow each other."""

    has_consecutive_ids = False


@pytest.mark.parametrize("blockwise", [False, True])
def test_a_mask_may_have_position_ids_with_gaps(blockwise: bool, draw: Callable) -> None:
    layer = small("relative", mask=Gaps, blockwise=blockwise)
    weights, numbers = draw(layer), np.arange(7, dtype=np.int32)[None]
    expected, _ = apply(layer, weights, X)
    close(apply(layer, weights, X, position_ids=numbers)[0], expected)
    assert not np.allclose(apply(layer, weights, X, position_ids=2 * numbers)[0], expected)


def test_a_bidirectional_bias_knows_which_of_two_comes_first(draw: Callable) -> None:
    layer = small("relative", mask=Bidirectional)
    assert layer.positions.p.bidirectional
    turned, _ = apply(layer, draw(layer), X[:, ::-1])
    assert not np.allclose(turned[:, ::-1], apply(layer, draw(layer), X)[0])


@pytest.mark.parametrize(("window", "ahead"), [(1, 0), (2, 0), (3, 0), (2, 1), (1, 2), (9, 0)])
def test_a_window_ignores_positions_outside(window: int, ahead: int, with_weights) -> None:
    layer, weights = with_weights(small(mask=LocalWindow.params(window=window, ahead=ahead)))
    whole, _ = apply(layer, weights, X)
    for t in range(7):
        x = np.random.default_rng(t).normal(size=X.shape).astype(np.float32)
        seen = slice(max(t - window + 1, 0), t + ahead + 1)
        x[:, seen] = X[:, seen]
        close(apply(layer, weights, x)[0][:, t], whole[:, t])


@pytest.mark.parametrize("positions", [None, Rotary, T5, Alibi])
def test_blocks_compute_what_a_mask_over_all_pairs_does(positions: Any, with_weights) -> None:
    mask = LocalWindow.params(window=2, ahead=1)
    layer, weights = with_weights(small(mask=mask, positions=positions))
    inputs = {
        "segments": np.array([[1, 1, 1, 1, 2, 2, 0], [1] * 7], np.int32),
        "position_ids": np.array([[0, 1, 2, 3, 0, 1, 0], np.arange(7)], np.int32),
    }

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([2, None, 8])])
    def of_unknown_length(x: tf.Tensor) -> tf.Tensor:  # never in blocks
        return apply(layer, weights, x, **inputs)[0]

    close(apply(layer, weights, X, **inputs)[0], of_unknown_length(X))


def test_a_prefix_is_seen_by_all_of_its_document(draw: Callable) -> None:
    layer, causal = small("prefix"), small("prefix", mask=Bidirectional)
    weights = draw(layer)
    prefix = np.array([[True] * 3 + [False] * 4] * 2)
    y, _ = apply(layer, weights, X, prefix=prefix)
    close(y[:, :3], apply(causal, weights, X[:, :3])[0])
    close(y[:, 6:], apply(causal, weights, X)[0][:, 6:])
    assert not np.allclose(y[:, :3], apply(layer, weights, X)[0][:, :3])


def test_a_prefix_is_not_seen_by_another_document(with_weights) -> None:
    layer, weights = with_weights(small("prefix"))
    packed, _ = apply(
        layer,
        weights,
        X,
        segments=np.array([[1, 1, 1, 2, 2, 2, 2]] * 2, np.int32),
        position_ids=np.array([[0, 1, 2, 0, 1, 2, 3]] * 2, np.int32),
        prefix=np.array([[True, True, False, True, True, True, False]] * 2),
    )
    second, _ = apply(layer, weights, X[:, 3:], prefix=np.array([[True, True, True, False]] * 2))
    close(packed[:, 3:], second)


@over_forms
@pytest.mark.parametrize("sizes", [[1] * 7, [4, 1, 2], [7]])
def test_chunk_by_chunk_equals_the_whole(form: str, sizes: list[int], with_weights) -> None:
    layer, weights = with_weights(small(form))
    close(in_chunks(layer, weights, X, sizes, room=2), apply(layer, weights, X)[0])


@over_forms
def test_steps_may_start_from_another_position(form: str, draw: Callable) -> None:
    layer = small(form)
    weights, numbers = draw(layer), np.array([np.arange(7), np.arange(7) + 5], np.int32)
    whole, _ = apply(layer, weights, X, position_ids=numbers)
    close(in_chunks(layer, weights, X, [2, 1, 4], position_ids=numbers), whole)


def test_the_chunk_with_the_prefix_sees_all_of_it(with_weights) -> None:
    layer, weights = with_weights(small("prefix"))
    prefix = np.array([[True] * 3 + [False] * 4, [True] * 2 + [False] * 5])
    whole, _ = apply(layer, weights, X, prefix=prefix)
    close(in_chunks(layer, weights, X, [4, 1, 2], prefix=prefix), whole)


@pytest.mark.parametrize("form", ["rotary", "grouped", "local_relative", "prefix"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_loop_in_a_graph_gives_the_same_as_the_whole(form, jit_compile, with_weights):
    layer, weights = with_weights(small(form))

    @tf.function(autograph=False, jit_compile=jit_compile)
    def loop(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, caches: Any, kept: Any) -> Any:
            y, sides = apply(
                layer, weights, tf.gather(x, [i], axis=1), i, method="step", call={"caches": caches}
            )
            return i + 1, sides.caches, kept.write(i, y[:, 0])

        kept = tf.TensorArray(tf.float32, 7, element_shape=[2, 8])
        state = (0, layer.empty_caches(batch_size=2, length=7), kept)
        _, _, kept = tf.while_loop(lambda i, *_: i < 7, body, state, maximum_iterations=7)
        return tf.transpose(kept.stack(), [1, 0, 2])

    close(loop(X), apply(layer, weights, X)[0])


@pytest.mark.parametrize("form", ["grouped", "local_relative"])
def test_steps_of_a_scan_equal_the_whole(form: str, draw: Callable) -> None:
    layer = Repeat.params(layer=small(form).p.copy(), num_layers=2).build(dim=8)
    weights = draw(layer)
    close(in_chunks(layer, weights, X, [3, 1, 3]), apply(layer, weights, X)[0])


@pytest.mark.parametrize("mask", [Bidirectional, LocalWindow.params(window=2, ahead=1)])
def test_what_sees_later_positions_has_no_steps_and_no_caches(mask: Any, draw: Callable) -> None:
    layer = small(mask=mask)
    assert layer.caches() == {}
    with pytest.raises(ValueError, match="shows later positions, so it cannot be computed"):
        apply(layer, draw(layer), X, 0, method="step")


def test_caches_have_heads_of_keys_before_positions_and_the_type_of_the_computation() -> None:
    layer = small("grouped", dtype="bfloat16")
    caches = layer.empty_caches(batch_size=3, length=9)
    assert {(where, tuple(c.shape), c.dtype) for where, c in caches.items()} == {
        ("key", (3, 2, 9, 2), tf.bfloat16),
        ("value", (3, 2, 9, 2), tf.bfloat16),
    }


def test_a_window_remembers_no_more_than_it_sees() -> None:
    caches = small(mask=LocalWindow.params(window=4)).empty_caches(batch_size=3, length=1000)
    assert {tuple(c.shape) for c in caches.values()} == {(3, 2, 3, 4)}


def test_lengths_may_be_known_only_at_run_time(draw: Callable) -> None:
    for form in ("relative", "grouped"):
        layer = small(form)
        weights = draw(layer)

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None, 8])])
        def call(x: tf.Tensor, layer: Any = layer, weights: Any = weights) -> tf.Tensor:
            return apply(layer, weights, x)[0]

        close(call(X), apply(layer, weights, X)[0])


@pytest.mark.parametrize("form", ["plain", "local"])
@pytest.mark.parametrize("drop", ["element", "feature"])
def test_weights_are_dropped_in_training_only(form: str, drop: str, with_weights) -> None:
    layer, weights = with_weights(small(form, dropout_rate=0.5, dropout_form=drop))
    expected, _ = apply(small(form), weights, X)
    np.testing.assert_array_equal(apply(layer, weights, X)[0], expected)
    whole, _ = apply(layer, weights, X, call=TRAINING)
    assert not np.allclose(whole, expected)
    second, _ = apply(layer, weights, X[1:], call=TRAINING | {"rows": tf.constant([1])})
    close(second, whole[1:])


@pytest.mark.parametrize("form", ["plain", "rotary", "relative", "multi_query", "local", "biases"])
def test_logits_stay_operations_that_are_fast_on_processors(form: str, with_weights) -> None:
    layer, weights = with_weights(small(form))
    call = tf.function(lambda x: apply(layer, weights, x)[0], autograph=False)
    recorder = eager.context()  # TensorFlow shows what it made of a graph nowhere else
    recorder.enable_run_metadata()
    call(X)
    graphs = recorder.export_run_metadata().function_graphs
    recorder.disable_run_metadata()
    found = {node.op for graph in graphs for node in graph.post_optimization_graph.node}
    assert "Softmax" in found
    assert not any("FusedBatchMatMul" in op for op in found)


@pytest.mark.parametrize("form", ["relative", "multi_query", "grouped", "local", "wide_window"])
@pytest.mark.parametrize("head_dim", [None, 6])
def test_flops_are_those_of_the_traced_graph(form, head_dim, traced_flops):
    layer = small(form, head_dim=head_dim)
    assert layer.flops(X.shape) == traced_flops(layer, X)


def test_a_window_costs_two_blocks_of_logits_for_each_position() -> None:
    dense, local = (small(mask=m).flops([1, 64, 8]) for m in (Causal, LocalWindow.params(window=4)))
    assert dense - local == 4 * 8 * 64 * (64 - 2 * 4)


def test_axes_tell_heads_that_are_fewer_from_the_others() -> None:
    axes = {where: spec.axes for where, spec in small("grouped", use_bias=True).weights().items()}
    assert axes["w_query"] == ("embed", "heads", "head_dim")
    assert axes["w_key"] == ("embed", "kv_heads", "head_dim")
    assert axes["b_value"] == ("kv_heads", "head_dim")
    assert small().weights()["w_key"].axes == ("embed", "heads", "head_dim")


def test_heads_share_the_fan_in_of_the_output() -> None:
    assert small(head_dim=3).weights()["w_output"].fan_in == 6
