"""Additive states of metrics, and the values that are computed from them."""

from __future__ import annotations

from lingo.metrics.classification import confusion, score_counts, score_table, top_k_accuracy
from lingo.metrics.metric import (
    Accumulator,
    bits,
    mean,
    means,
    perplexity,
    weighted_mean,
)
from lingo.metrics.results import read_state
from lingo.metrics.text import text_scores

__all__ = [
    "Accumulator",
    "bits",
    "confusion",
    "mean",
    "means",
    "perplexity",
    "read_state",
    "score_counts",
    "score_table",
    "text_scores",
    "top_k_accuracy",
    "weighted_mean",
]
