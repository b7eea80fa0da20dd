"""Classification metrics as additive states: a program counts, and Python computes results.

    a program counts                       Python computes
    confusion       [K, K] counts          accuracy, precision, recall, F1: macro, micro, per class
    score_counts    2 x [M] counts         AUC from a histogram of scores, with its error bound
    score_table     3 x [N] scores         AUC, exact
    top_k_accuracy  a mean                 the mean

Counts are float64, exact up to 2**53, so results do not depend on how examples are split into
batches and over devices.

Axes: B examples of a batch, K classes, M bins, N examples of a whole pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.metrics.metric import weighted_mean

MAX_NAMED_CLASSES = 20
"""The most classes for which there are results per class."""


def top_k_accuracy(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, *, k: int
) -> dict[str, tf.Tensor]:
    """Returns the state of the share of examples whose label is among the k largest logits.

    Args:
        logits: [B, K], any float type.
        labels: int [B], in 0..K-1.
        weights: [B]; 0 for padding.
        k: the number of largest logits. A label counts if fewer than k logits exceed the label's.

    >>> logits = tf.constant([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]])
    >>> state = top_k_accuracy(logits, tf.constant([2, 2]), tf.constant([1.0, 1.0]), k=2)
    >>> state["sum"].numpy().item(), state["weight"].numpy().item()
    (1.0, 2.0)
    """
    own = tf.gather(logits, tf.cast(labels, tf.int32), axis=1, batch_dims=1)
    larger = tf.reduce_sum(tf.cast(logits > own[:, None], tf.int32), axis=1)
    return weighted_mean(larger < k, weights)


# ---- counts of (label, prediction) ---------------------------------------------------------------


def confusion(
    labels: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor, *, num_classes: int
) -> dict[str, tf.Tensor]:
    """Returns the state {"confusion": float64 [K, K]}: total weight of each (label, prediction).

    Args:
        labels: int [B], in 0..K-1.
        predictions: int [B], in 0..K-1.
        weights: [B]; 0 for padding.
        num_classes: K.

    >>> state = confusion(tf.constant([0, 1, 1]), tf.constant([0, 1, 0]), tf.ones(3), num_classes=2)
    >>> state["confusion"].numpy()
    array([[1., 0.],
           [1., 1.]])
    """
    rows = tf.one_hot(labels, num_classes, dtype=tf.float64)
    columns = tf.one_hot(predictions, num_classes, dtype=tf.float64)
    weighted = rows * tf.cast(weights, tf.float64)[:, None]
    return {"confusion": tf.matmul(weighted, columns, transpose_a=True)}


def confusion_results(state: Mapping[str, Any]) -> dict[str, float]:
    """Returns accuracy, precision, recall and F1 from a [K, K] matrix of counts.

    `macro` is the mean over classes that occur as a label or a prediction; `micro` counts all
    examples alike, which for one label per example is the accuracy. A ratio 0 / 0 is 0, as in
    scikit-learn. With at most 20 classes, each class also has its precision, recall and F1.

    >>> confusion_results({"confusion": np.array([[1.0, 0.0], [1.0, 1.0]])})["f1_macro"]
    0.6666666666666666
    """
    counts = np.asarray(state["confusion"], np.float64)
    right, labels, predictions = np.diag(counts), counts.sum(1), counts.sum(0)
    if not counts.sum():
        return {}
    precision, recall = _ratio(right, predictions), _ratio(right, labels)
    f1 = _ratio(2 * right, labels + predictions)
    occurs = labels + predictions > 0
    results = {
        "accuracy": right.sum() / counts.sum(),
        "precision_macro": precision[occurs].mean(),
        "recall_macro": recall[occurs].mean(),
        "f1_macro": f1[occurs].mean(),
        "f1_micro": 2 * right.sum() / (labels.sum() + predictions.sum()),
    }
    if len(counts) <= MAX_NAMED_CLASSES:
        for number in range(len(counts)):
            results[f"precision_{number}"] = precision[number]
            results[f"recall_{number}"] = recall[number]
            results[f"f1_{number}"] = f1[number]
    return {name: float(value) for name, value in results.items()}


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Returns part / whole, both [K], and 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


# ---- area under the ROC curve --------------------------------------------------------------------


def score_counts(
    scores: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, *, num_bins: int = 1024
) -> dict[str, tf.Tensor]:
    """Returns the state {"positives", "negatives": float64 [M]}: histograms of two classes' scores.

    Args:
        scores: [B], any float type, in 0..1: probabilities of the class 1.
        labels: [B], 0 or 1, any number type.
        weights: [B]; 0 for padding.
        num_bins: M, of equal width.

    >>> state = score_counts(tf.constant([0.1, 0.9]), tf.constant([0, 1]), tf.ones(2), num_bins=2)
    >>> state["positives"].numpy(), state["negatives"].numpy()
    (array([0., 1.]), array([1., 0.]))
    """
    index = tf.cast(tf.cast(scores, tf.float32) * num_bins, tf.int32)
    bins = tf.one_hot(tf.clip_by_value(index, 0, num_bins - 1), num_bins, dtype=tf.float64)
    weights, positive = tf.cast(weights, tf.float64), tf.cast(labels, tf.float64)
    return {
        "positives": tf.linalg.matvec(bins, weights * positive, transpose_a=True),
        "negatives": tf.linalg.matvec(bins, weights * (1 - positive), transpose_a=True),
    }


def score_count_results(state: Mapping[str, Any]) -> dict[str, float]:
    """Returns `auc`, computed from histograms [M], and `auc_error`, the bound of the AUC's error.

    AUC is the probability that a positive example has a higher score than a negative one. A pair in
    one bin counts one half. The exact AUC lies between counting none and counting all of these
    pairs.

    >>> score_count_results({"positives": np.array([1.0, 1.0]), "negatives": np.array([1.0, 0.0])})
    {'auc': 0.75, 'auc_error': 0.25}
    """
    positives, negatives = (np.asarray(state[k], np.float64) for k in ("positives", "negatives"))
    pairs = positives.sum() * negatives.sum()
    if not pairs:
        return {}
    below = np.cumsum(negatives) - negatives
    tied = 0.5 * positives @ negatives
    return {
        "auc": float((positives @ below + tied) / pairs),
        "auc_error": float(tied / pairs),
    }


def score_table(
    scores: tf.Tensor,
    labels: tf.Tensor,
    weights: tf.Tensor,
    example_ids: tf.Tensor,
    *,
    num_examples: int,
) -> dict[str, tf.Tensor]:
    """Returns the state {"scores", "labels", "weights": float64 [N]}: each example in its own slot.

    So a sum over batches and devices keeps every score, and the AUC from it is exact. The state
    takes 24 N bytes; the state of `score_counts` has a fixed size.

    Args:
        scores: [B], any float type.
        labels: [B], 0 or 1, any number type.
        weights: [B]; 0 for padding.
        example_ids: int64 [B], `batch["example_id"]` of a single pass.
        num_examples: N, the number of examples in the whole pass.

    >>> one = tf.ones(1)
    >>> score_table(0.5 * one, one, one, tf.constant([2]), num_examples=3)["scores"].numpy()
    array([0. , 0. , 0.5])
    """
    weights = tf.cast(weights, tf.float64)
    slots = table_slots(example_ids, num_examples)

    def scatter(values: tf.Tensor) -> tf.Tensor:
        values = tf.where(weights > 0, tf.cast(values, tf.float64), tf.zeros_like(weights))
        return tf.math.unsorted_segment_sum(values, slots, num_examples)

    return {"scores": scatter(scores), "labels": scatter(labels), "weights": scatter(weights)}


def table_slots(example_ids: tf.Tensor, num_examples: int) -> tf.Tensor:
    """Returns the slot, int32 [B], of each example id, int [B], in a table of `num_examples` slots.

    Ids outside of the table take its first or last slot. Slots are int32, because XLA's partitioner
    (JAX 0.10.2) ends the process if unequal parts of a batch have int64 slots.

    >>> table_slots(tf.constant([0, 7]), 3).numpy()
    array([0, 2], dtype=int32)
    """
    return tf.cast(tf.clip_by_value(example_ids, 0, num_examples - 1), tf.int32)


def score_table_results(state: Mapping[str, Any]) -> dict[str, float]:
    """Returns the exact `auc` from scores, labels and weights [N]; equal scores count one half.

    >>> table = {"scores": [0.1, 0.4, 0.35, 0.8], "labels": [0, 0, 1, 1], "weights": [1, 1, 1, 1]}
    >>> score_table_results(table)
    {'auc': 0.75}
    """
    scores, labels, weights = (
        np.asarray(state[k], np.float64) for k in ("scores", "labels", "weights")
    )
    _, inverse = np.unique(scores, return_inverse=True)
    positives = np.bincount(inverse, weights * (labels > 0.5))
    negatives = np.bincount(inverse, weights * (labels <= 0.5))
    results = score_count_results({"positives": positives, "negatives": negatives})
    return {name: value for name, value in results.items() if name == "auc"}
