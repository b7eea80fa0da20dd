"""Recognition by a transducer: losses against all paths, hypotheses against all texts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import LayerNorm
from lingo.layers.context import apply
from lingo.layers.stacks.stack import Stack
from lingo.models import ConformerEncoder, JointNetwork, PredictionNetwork
from tasks.asr.transducer import TransducerRecognition
from tests.lingo.ops.speech.test_transducer import brute_force
from tests.tasks.asr.small import BATCH, B, D, EveryFrame, F, U, V, compute, draw_weights, edits

P, J = 3, 5
TEXTS = [t for size in range(U + 1) for t in itertools.product(range(1, V), repeat=size)]


def build(**fields: Any) -> TransducerRecognition:
    params: Params = TransducerRecognition.params(
        encoder=EveryFrame, feature_dim=F, vocab_size=V, max_labels=U, num_beams=len(TEXTS) + 1
    )
    params.prediction = PredictionNetwork.params(dim=2, hidden_dim=P, num_layers=2)
    params.joint.hidden_dim = J
    return params.set(max_symbols=U).set(**fields).build()


def larger(task: TransducerRecognition) -> dict[str, Any]:
    """Returns weights that make unequal probabilities."""
    return {k: 3 * v for k, v in draw_weights(task).items()}


def part(weights: dict[str, Any], name: str) -> dict[str, Any]:
    return {k.removeprefix(f"{name}/"): v for k, v in weights.items() if k.startswith(name)}


def logits_of(weights: dict[str, Any]) -> dict[tuple[int, ...], np.ndarray]:
    """Returns the logits of nodes by text, float64 [B, T, length of the text + 1, V]."""
    prediction = PredictionNetwork.params(vocab_size=V, dim=2, hidden_dim=P, num_layers=2).build()
    joint = JointNetwork.params(dim=D, label_dim=P, hidden_dim=J, vocab_size=V).build()
    tokens = np.array([(0, *text, *[0] * (U - len(text))) for text in TEXTS], "i")
    known, _ = apply(prediction, part(weights, "prediction"), tokens)
    encoded = BATCH["features"] @ weights["encoder/linear/w"]
    rows = np.repeat(encoded, len(TEXTS), axis=0), np.tile(known, [B, 1, 1])
    logits, _ = apply(joint, part(weights, "joint"), *map(tf.constant, rows))
    every = logits.numpy().astype("d").reshape([B, len(TEXTS), *logits.shape[1:]])
    return {text: every[:, i, :, : len(text) + 1] for i, text in enumerate(TEXTS)}


def test_the_loss_is_in_nats_per_label_over_all_paths() -> None:
    task = build()
    weights = larger(task)
    _, metrics = compute(task, BATCH, weights)
    nats, logits = [], logits_of(weights)
    for i, size in enumerate(BATCH["num_frames"][:3]):
        labels = tuple(BATCH["labels"][i, :2].tolist())
        nats.append(brute_force(logits[labels][i, :size], list(labels)))
    np.testing.assert_allclose(metrics["loss"], sum(nats) / 6, rtol=1e-5)
    np.testing.assert_allclose(metrics["feasible"], 1)


def test_predictions_are_the_likeliest_texts() -> None:
    """All texts of at most U labels; a path may have U labels in a frame."""
    task = build()
    weights = larger(task)
    found, _ = compute(task, BATCH, weights)
    logits = logits_of(weights)
    for i, size in enumerate(BATCH["num_frames"][:3]):
        nats = {text: brute_force(logits[text][i, :size], list(text)) for text in TEXTS}
        best = sorted(TEXTS, key=lambda text: nats[text])
        pairs = zip(found["labels"][i], found["num_labels"][i], strict=True)
        assert [tuple(ids[:n].tolist()) for ids, n in pairs][: len(best)] == best
        scores = -found["scores"][i, : len(best)]
        np.testing.assert_allclose(scores, [nats[t] for t in best], rtol=1e-4)
    assert not found["num_labels"][3].any()


def test_one_beam_is_the_greedy_path_whose_edits_are_counted() -> None:
    task = build(num_beams=1, max_symbols=2)
    weights = larger(task)
    found, metrics = compute(task, BATCH, weights)
    assert found["labels"].shape == (B, U)
    errors, logits = 0, logits_of(weights)
    for i, size in enumerate(BATCH["num_frames"][:3]):
        labels: tuple[int, ...] = ()
        for t in range(size):
            for _ in range(2):
                label = int(logits[labels][i, t, len(labels)].argmax())
                if not label or len(labels) == U:
                    break
                labels += (label,)
        assert tuple(found["labels"][i, : found["num_labels"][i]].tolist()) == labels
        errors += edits(BATCH["labels"][i, :2].tolist(), list(labels))
    np.testing.assert_allclose(metrics["label_error_rate"], 100 * errors / 6)


def test_labels_with_the_blank_and_padding_do_not_count() -> None:
    task = build()
    weights = larger(task)
    labels = BATCH["labels"].copy()
    labels[:, 2] = 1
    one, other = (compute(task, b, weights) for b in (BATCH, BATCH | {"labels": labels}))
    assert other[1] == one[1]
    labels[0, 0] = 0
    _, metrics = compute(task, BATCH | {"labels": labels}, weights)
    np.testing.assert_allclose(metrics["feasible"], 2 / 3)


@pytest.mark.parametrize("name", ["num_beams", "max_symbols"])
def test_counts_are_above_zero(name: str) -> None:
    with pytest.raises(ParamError, match=name):
        build(**{name: 0})


def test_a_plan_counts_the_products() -> None:
    task = build(
        encoder=ConformerEncoder.params(
            output_dim=4, stack=Stack.params(layer=LayerNorm, num_layers=1)
        )
    )
    specs = {"features": ((B, 8, F), "float32")}
    num, frames = U + 1, 2
    encoder = task.encoder.flops((B, 8, F))
    lstms = 2 * B * num * 4 * P * (2 + P + P + P)
    joint = 2 * J * B * (frames * 4 + num * P + frames * num * V)
    assert task.batch_flops(specs) == encoder + lstms + joint
