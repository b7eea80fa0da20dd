"""CTC recognition: losses against brute force, feasible labels, predictions, SpecAugment."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError, Params
from lingo.metrics.media import Image
from tasks.asr.ctc import CtcRecognition
from tests.tasks.asr.small import BATCH, B, EveryFrame, F, T, U, V, compute, draw_weights, edits


def build(**fields: Any) -> CtcRecognition:
    params: Params = CtcRecognition.params(
        encoder=EveryFrame, feature_dim=F, vocab_size=V, max_labels=U
    )
    return params.set(**fields).build()


def run(
    task: CtcRecognition, batch: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, float], np.ndarray]:
    """Returns predictions, metrics, and probabilities of classes by slow NumPy, [B, T, V]."""
    weights = draw_weights(task)
    x = batch["features"] @ weights["encoder/linear/w"] @ weights["head/w"] + weights["head/b"]
    exp = np.exp(x.astype("d"))
    return *compute(task, batch, weights), exp / exp.sum(-1, keepdims=True)


def collapse(path: tuple[int, ...]) -> list[int]:
    """Returns the labels of a path: repeats merge, then blanks go."""
    return [label for label, _ in itertools.groupby(path) if label]


def brute_force(probabilities: np.ndarray, labels: list[int]) -> float:
    """Returns the probability of labels, summed over all paths of the frames [T, V]."""
    paths = itertools.product(range(V), repeat=len(probabilities))
    return sum(
        float(np.prod([frame[label] for frame, label in zip(probabilities, path, strict=True)]))
        for path in paths
        if collapse(path) == labels
    )


def test_the_loss_is_in_nats_per_label_of_utterances_that_are_feasible() -> None:
    _, metrics, probabilities = run(build(), BATCH)
    nats = [
        -np.log(brute_force(probabilities[i, :size], BATCH["labels"][i, :2].tolist()))
        for i, size in enumerate([5, 4])
    ]
    np.testing.assert_allclose(metrics["loss"], sum(nats) / 4, rtol=1e-5)
    np.testing.assert_allclose(metrics["feasible"], 2 / 3)


def test_predictions_are_the_labels_of_the_likeliest_path() -> None:
    found, metrics, probabilities = run(build(), BATCH)
    errors = 0
    for i, size in enumerate(BATCH["num_frames"][:3]):
        wanted = collapse(tuple(probabilities[i, :size].argmax(-1).tolist()))
        assert found["labels"][i].tolist() == (wanted + [0] * U)[:U]
        assert found["num_labels"][i] == min(len(wanted), U)
        errors += edits(BATCH["labels"][i, :2].tolist(), wanted[:U])
    np.testing.assert_allclose(metrics["label_error_rate"], 100 * errors / 6)


def test_labels_that_hold_the_blank_do_not_count() -> None:
    labels = np.array([[1, 0, 0], *BATCH["labels"][1:]], "i")
    _, metrics, _ = run(build(), BATCH | {"labels": labels})
    np.testing.assert_allclose(metrics["feasible"], 1 / 3)


def test_padding_does_not_matter() -> None:
    features = BATCH["features"].copy()
    features[1, 4:], features[2, 2:], features[3] = 7.0, 7.0, 7.0
    labels = BATCH["labels"].copy()
    labels[:, 2], labels[3] = 1, 2
    one, many = (run(build(), b) for b in (BATCH, BATCH | {"features": features}))
    others = run(build(), BATCH | {"labels": labels})
    for found in (many, others):
        assert found[1] == one[1]
        np.testing.assert_array_equal(found[0]["labels"][:3], one[0]["labels"][:3])


def test_summaries_show_features() -> None:
    task = build()
    found, *_ = run(task, BATCH)
    picture = task.summaries(BATCH, found)["features"]
    assert isinstance(picture, Image)
    assert picture.pixels.shape == (B, F, T, 1)
    assert not picture.problem()
    assert picture.pixels.min() == 0
    assert picture.pixels.max() == 1


def test_another_input_is_refused() -> None:
    with pytest.raises(ParamError, match="offers no feature_dim: take AudioInput"):
        build().check_input({"vocab_size": V})
    with pytest.raises(ParamError, match="vocab_size=3, but the input has 4"):
        build().check_input({"vocab_size": 4, "feature_dim": F})
