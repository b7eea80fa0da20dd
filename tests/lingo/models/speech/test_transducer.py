"""The networks of a transducer, against slow NumPy and step by step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lingo.config.lazy import tf
from lingo.layers.context import apply
from lingo.models import FramewiseJoint, JointNetwork, PredictionNetwork
from lingo.ops.speech import TransducerScores, scores_of_logits

TOKENS = np.random.default_rng(0).integers(0, 7, [2, 5]).astype(np.int32)


def test_every_frame_is_joined_with_every_length_of_the_text(draw: Callable) -> None:
    layer = JointNetwork.params(dim=3, label_dim=2, hidden_dim=4, vocab_size=6).build()
    w = draw(layer)
    generator = np.random.default_rng(0)
    frames, texts = (generator.normal(size=[2, *size]).astype("f") for size in ((5, 3), (3, 2)))
    logits, _ = apply(layer, w, frames, texts)
    for t in range(5):
        for u in range(3):
            hidden = frames[:, t] @ w["w_frame"].numpy() + texts[:, u] @ w["w_label"].numpy()
            expected = np.tanh(hidden + w["b"].numpy()) @ w["w_out"].numpy() + w["b_out"].numpy()
            np.testing.assert_allclose(logits[:, t, u], expected, rtol=1e-4, atol=1e-5)
    products = 5 * 3 * 4 + 3 * 2 * 4 + 5 * 3 * 4 * 6
    assert layer.flops((2, 5, 3), memory_length=3) == 2 * 2 * products


def test_steps_of_the_prediction_network_compute_what_the_whole_does(draw: Callable) -> None:
    layer = PredictionNetwork.params(vocab_size=7, dim=3, hidden_dim=4, num_layers=2).build()
    weights = draw(layer)
    whole, _ = apply(layer, weights, TOKENS)
    caches, parts = layer.empty_caches(batch_size=2, length=5), []
    for start, stop in ((0, 1), (1, 2), (2, 5)):
        call = {"caches": caches}
        y, sides = apply(layer, weights, TOKENS[:, start:stop], start, method="step", call=call)
        caches = sides.caches
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=1e-5, atol=1e-6)


def test_the_prediction_network_reads_tokens_one_by_one(draw: Callable) -> None:
    layer = PredictionNetwork.params(vocab_size=7, dim=3, hidden_dim=4, num_layers=2).build()
    weights = draw(layer)
    whole, _ = apply(layer, weights, TOKENS)
    state = layer.start(2)
    for i in range(TOKENS.shape[1]):
        (y, state), _ = apply(layer, weights, TOKENS[:, i], state, method="advance")
        np.testing.assert_allclose(y, whole[:, i], rtol=1e-5, atol=1e-6)


def test_scores_frame_by_frame_are_those_of_all_logits(draw: Callable) -> None:
    layer = FramewiseJoint.params(dim=3, label_dim=2, hidden_dim=4, vocab_size=6).build()
    weights, generator = draw(layer), np.random.default_rng(0)
    frames, texts = (
        tf.constant(generator.normal(size=[2, *size]).astype("f")) for size in ((5, 3), (3, 2))
    )
    labels = tf.constant([[1, 2], [3, 4]])

    def whole(*inputs: tf.Tensor) -> TransducerScores:
        return scores_of_logits(apply(layer, weights, *inputs)[0], labels)

    def framewise(*inputs: tf.Tensor) -> TransducerScores:
        return apply(layer, weights, *inputs, labels, method="score_labels")[0]

    watched = [frames, texts, *weights.values()]
    results = []
    for compute in (whole, framewise):
        with tf.GradientTape() as tape:
            tape.watch(watched)
            scores = compute(frames, texts)
            total = tf.reduce_sum(scores.blank[:, 1:] * 2) + tf.reduce_sum(scores.label[:, :, :2])
        results.append((scores.blank, scores.label[:, :, :2], tape.gradient(total, watched)))
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *results
    )


def test_weights_of_a_transducer_of_the_small_conformer() -> None:
    prediction = PredictionNetwork.params(vocab_size=1024, dim=320, hidden_dim=320).build()
    joint = JointNetwork.params(dim=144, label_dim=320, hidden_dim=320, vocab_size=1024).build()
    sizes = [sum(s.size for s in layer.weights().values()) for layer in (prediction, joint)]
    lstm = 4 * 320 * (320 + 320 + 1)
    assert sizes == [1024 * 320 + lstm, (144 + 320 + 1) * 320 + 321 * 1024]
