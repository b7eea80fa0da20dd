"""Metrics of classification: those of scikit-learn, however examples are batched."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from sklearn import metrics as sklearn

from lingo.config.lazy import tf
from lingo.metrics.classification import (
    confusion,
    confusion_results,
    score_count_results,
    score_counts,
    score_table,
    score_table_results,
    top_k_accuracy,
)
from lingo.metrics.metric import Accumulator
from lingo.metrics.results import UnknownState, read_state
from tests.lingo.runtimes.child import printed

SIZES = (64, 37, 1, 98)  # of ragged batches


def examples(num_classes=5, size=200, rare=False):
    """Returns labels [N], logits [N, K] and which examples count."""
    draw = np.random.default_rng(num_classes)
    labels = draw.integers(0, num_classes - rare, size)
    logits = draw.normal(size=(size, num_classes)) + 1.5 * np.eye(num_classes)[labels]
    return labels, logits.astype(np.float32), np.arange(size) % 7 != 0


def added(state_of):
    """Returns the sum of the states of ragged batches: `state_of(slice)`."""
    total, start = Accumulator(), 0
    for size in SIZES:
        total.add({"metric": state_of(slice(start, start + size))})
        start += size
    return total.states["metric"]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_top_k_accuracy(k):
    labels, logits, kept = examples()
    state = added(lambda s: top_k_accuracy(logits[s], labels[s], kept[s], k=k))
    expected = sklearn.top_k_accuracy_score(labels[kept], logits[kept], k=k, labels=range(5))
    assert read_state("top", state) == {"top": pytest.approx(expected, abs=1e-12)}


def test_equal_logits_are_among_the_best_together():
    state = top_k_accuracy(np.zeros([1, 3], "f"), np.array([2]), np.ones(1), k=1)
    assert read_state("top", state) == {"top": 1.0}


@pytest.mark.parametrize("rare", [False, True])
def test_precision_recall_and_f1(rare):
    labels, logits, kept = examples(rare=rare)
    guesses = logits.argmax(1)
    if rare:
        guesses = np.where(guesses == 4, 0, guesses)  # class 4 is neither a label nor predicted
    state = added(lambda s: confusion(labels[s], guesses[s], kept[s], num_classes=5))
    true, guess = labels[kept], guesses[kept]
    np.testing.assert_array_equal(
        state["confusion"], sklearn.confusion_matrix(true, guess, labels=range(5))
    )
    found = confusion_results(state)
    for average in ("macro", None):
        expected = sklearn.precision_recall_fscore_support(
            true, guess, average=average, labels=None if average else range(5), zero_division=0
        )
        for name, values in zip(("precision", "recall", "f1"), expected, strict=False):
            own = found[f"{name}_macro"] if average else [found[f"{name}_{i}"] for i in range(5)]
            np.testing.assert_allclose(own, values, rtol=0, atol=1e-12)
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(true, guess), abs=1e-12)
    micro = sklearn.f1_score(true, guess, average="micro")
    assert found["f1_micro"] == pytest.approx(micro, abs=1e-12)


def test_many_classes_have_no_results_of_their_own():
    found = confusion_results({"confusion": np.eye(21)})
    assert sorted(found) == ["accuracy", "f1_macro", "f1_micro", "precision_macro", "recall_macro"]


def scores():
    labels, logits, kept = examples(num_classes=2)
    scores = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    return labels, scores.round(2).astype("f"), kept  # rounded: some are equal


def test_auc_of_all_scores_is_exact():
    labels, values, kept = scores()
    ids = np.random.default_rng(0).permutation(len(labels))

    def state(s):
        return score_table(values[s], labels[s], kept[s], ids[s], num_examples=len(labels))

    expected = sklearn.roc_auc_score(labels[kept], values[kept])
    assert score_table_results(added(state)) == {"auc": pytest.approx(expected, abs=1e-12)}


@pytest.mark.parametrize("num_bins", [2, 10, 1000])
def test_auc_of_a_histogram_is_within_its_error(num_bins):
    labels, values, kept = scores()
    found = score_count_results(
        added(lambda s: score_counts(values[s], labels[s], kept[s], num_bins=num_bins))
    )
    exact = sklearn.roc_auc_score(labels[kept], values[kept])
    assert abs(found["auc"] - exact) <= found["auc_error"] + 1e-12


def test_a_histogram_as_fine_as_the_scores_is_exact():
    labels, values, kept = scores()
    state = score_counts(values * 100 / 101 + 1e-4, labels, kept, num_bins=101)
    exact = sklearn.roc_auc_score(labels[kept], values[kept])
    assert score_count_results(state)["auc"] == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize(
    "state",
    [
        {"confusion": np.zeros([3, 3])},
        {"positives": np.zeros(4), "negatives": np.ones(4)},
        {"scores": np.ones(3), "labels": np.ones(3), "weights": np.ones(3)},
        {"sum": 0.0, "weight": 0.0},
    ],
)
def test_what_cannot_be_computed_has_no_result(state):
    assert read_state("metric", state) == {}


def test_an_unknown_state_is_refused():
    with pytest.raises(UnknownState, match=r"mine is not a state of lingo.metrics.*'counts'"):
        read_state("mine", {"counts": np.ones(3)})


@pytest.mark.parametrize("num_devices", [4, 8])
def test_every_metric_is_the_same_on_one_and_on_several_devices(num_devices):
    script = pathlib.Path(__file__).with_name("on_devices.py")
    found = json.loads(printed(str(script), str(num_devices)))
    expected = found.pop("expected")
    assert [*found] == ["Local", "Replicated", "Mesh"]
    for results in found.values():
        others = {"bins/auc", "bins/auc_error", "twice", "loss/loss"}
        assert results.keys() == expected.keys() | others
        for name, value in expected.items():
            assert results[name] == pytest.approx(value, abs=1e-9), name
        assert abs(results["bins/auc"] - expected["exact/auc"]) <= results["bins/auc_error"]
        assert results["twice"] == 60  # three parts of 20 examples, of a state of the task's own


def test_a_state_is_a_tensor_of_float64():
    labels, logits, kept = examples()
    for state in (
        confusion(labels, logits.argmax(1), kept, num_classes=5),
        score_counts(logits[:, 0], labels > 2, kept),
        score_table(logits[:, 0], labels > 2, kept, np.arange(200), num_examples=200),
    ):
        assert {value.dtype for value in state.values()} == {tf.float64}
