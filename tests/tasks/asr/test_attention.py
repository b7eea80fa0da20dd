"""Recognition by attention: the loss against NumPy, hypotheses against all texts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.decode import Beam, PrunedBeam, Sampling
from lingo.layers.context import apply
from lingo.models import LasDecoder
from tasks.asr.attention import AttentionRecognition
from tests.tasks.asr.small import BATCH, B, D, EveryFrame, F, U, compute, draw_weights

START, END, V = 2, 1, 5
LABELS = np.array([[3, 4, 0], [4, 4, 0], [3, 0, 0], [0, 0, 0]], "i")
DATA = BATCH | {"labels": LABELS, "num_labels": np.array([2, 2, 1, 0], "i")}
TEXTS = [
    (*text, END)
    for size in range(U + 1)
    for text in itertools.product((0, START, 3, 4), repeat=size)
]
FIELDS = {"dim": 3, "hidden_dim": 4}


def build(**fields: Any) -> AttentionRecognition:
    params: Params = AttentionRecognition.params(
        encoder=EveryFrame,
        decoder=LasDecoder.params(**FIELDS),
        feature_dim=F,
        vocab_size=V,
        max_labels=U,
    )
    return params.set(**fields).build()


def larger(task: AttentionRecognition) -> dict[str, Any]:
    """Returns weights that make unequal probabilities."""
    return {k: 3 * v for k, v in draw_weights(task).items()}


def log_probs_of(weights: dict[str, Any], texts: np.ndarray) -> np.ndarray:
    """Returns log-probabilities of tokens after the start and each text, [B, texts, N, V].

    `texts` are int [texts, N - 1].
    """
    decoder = LasDecoder.params(vocab_size=V, memory_dim=D, **FIELDS).build()
    own = {k.removeprefix("decoder/"): v for k, v in weights.items() if k.startswith("decoder/")}
    encoded = BATCH["features"] @ weights["encoder/linear/w"]
    num = len(texts)
    tokens = np.tile(np.pad(texts, [[0, 0], [1, 0]], constant_values=START), [B, 1]).astype("i")
    segments = (np.arange(encoded.shape[1]) < BATCH["num_frames"][:, None]).astype("i")
    memory: dict[str, Any] = {"memory": encoded, "memory_segments": segments}
    rows: dict[str, Any] = {k: np.repeat(v, num, axis=0) for k, v in memory.items()}
    logits = apply(decoder, own, tokens, **rows)[0].numpy().astype("d")
    every = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return every.reshape([B, num, *every.shape[1:]])


def pad(texts: list[tuple[int, ...]]) -> np.ndarray:
    return np.array([text + (0,) * (U + 1 - len(text)) for text in texts])


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_the_cross_entropy_per_token_with_the_end(smoothing: float) -> None:
    task = build(label_smoothing=smoothing)
    weights = larger(task)
    log_probs, total, right = log_probs_of(weights, LABELS), 0.0, 0
    for i, size in enumerate(DATA["num_labels"][:3]):
        for j, target in enumerate([*LABELS[i, :size].tolist(), END]):
            own = log_probs[i, i, j]
            total -= (1 - smoothing) * own[target] + smoothing * own.mean()
            right += own.argmax() == target
    tensors = {k: tf.constant(v) for k, v in weights.items()}
    batch = {k: tf.constant(v) for k, v in DATA.items()}
    loss, _ = apply(task, tensors, batch, method="loss")
    np.testing.assert_allclose(loss["cross_entropy"], total, rtol=1e-5)
    denominators, _ = apply(task, tensors, batch, method="loss_denominators")
    np.testing.assert_allclose(denominators["cross_entropy"], 8)
    if not smoothing:
        _, metrics = compute(task, DATA, weights)
        np.testing.assert_allclose(metrics["loss"], total / 8, rtol=1e-5)
        np.testing.assert_allclose(metrics["accuracy"], right / 8)
        np.testing.assert_allclose(metrics["feasible"], 1)


def test_wide_beams_find_the_likeliest_texts() -> None:
    num = len(TEXTS)
    wide = {"num_beams": num, "num_samples": num, "local_eos_threshold": -1e9}
    decoding = PrunedBeam.params(beam_size=1e9, valid_eos_max_logit_delta=1e9, **wide)
    task = build(decoding=decoding)
    weights = larger(task)
    found, _ = compute(task, DATA, weights)
    log_probs = log_probs_of(weights, pad(TEXTS)[:, :U])
    for i in range(3):
        scores = {
            text: sum(log_probs[i, n, j, token] for j, token in enumerate(text))
            for n, text in enumerate(TEXTS)
        }
        best = sorted(TEXTS, key=lambda text: -scores[text])
        pairs = zip(found["labels"][i], found["num_labels"][i], strict=True)
        texts = [tuple(ids[:size].tolist()) for ids, size in pairs]
        assert texts == [text[:-1] for text in best]
        np.testing.assert_allclose(found["scores"][i], [scores[t] for t in best], rtol=1e-4)


def test_greedy_texts_take_the_likeliest_tokens() -> None:
    greedy = build(decoding=Sampling.params(temperature=0.0))
    weights = larger(greedy)
    found, _ = compute(greedy, DATA, weights)
    log_probs = log_probs_of(weights, pad(TEXTS)[:, :U])
    for i in range(3):
        labels: tuple[int, ...] = ()
        while len(labels) < U:
            row = next(n for n, text in enumerate(TEXTS) if text[: len(labels)] == labels)
            token = int(log_probs[i, row, len(labels)].argmax())
            if token == END:
                break
            labels += (token,)
        assert found["labels"][i, : found["num_labels"][i]].tolist() == list(labels)
    one = compute(build(decoding=Beam.params(num_beams=1)), DATA, weights)[0]
    np.testing.assert_array_equal(one["labels"][:3], found["labels"][:3])


def test_an_absent_hypothesis_is_empty() -> None:
    never = PrunedBeam.params(local_eos_threshold=-1e-6, num_beams=3, num_samples=2)
    task = build(decoding=never)
    found, _ = compute(task, DATA, larger(task))
    assert not found["labels"].any()
    assert not found["num_labels"].any()
    assert (found["scores"] == np.float32(-1e30)).all()


def test_padding_does_not_matter() -> None:
    task = build(decoding=PrunedBeam.params(num_beams=3, num_samples=3, coverage_penalty=0.3))
    weights = larger(task)
    features, labels = DATA["features"].copy(), LABELS.copy()
    features[1, 4:], features[2, 2:], features[3] = 7.0, 7.0, 7.0
    labels[:2, 2], labels[3] = 4, 3
    one = compute(task, DATA, weights)
    other = compute(task, DATA | {"features": features, "labels": labels}, weights)
    assert other[1] == one[1]
    for name in ("labels", "num_labels"):
        np.testing.assert_array_equal(other[0][name][:3], one[0][name][:3])


def test_an_input_of_more_ids_is_refused() -> None:
    offers = {"feature_dim": F, "vocab_size": V}
    build().check_input(offers)
    build().check_input(offers | {"vocab_size": V - 1})
    for change in ({"vocab_size": V + 1}, {"feature_dim": 9}):
        (name,) = change
        with pytest.raises(ParamError, match=f"{name}=.*the input has"):
            build().check_input(offers | change)


@pytest.mark.parametrize("name", ["start_id", "end_id"])
def test_ids_are_those_of_the_vocabulary(name: str) -> None:
    with pytest.raises(ParamError, match=rf"{name}=9 is not in 0..4, the ids of vocab_size=5"):
        build(**{name: 9})
