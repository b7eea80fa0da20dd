"""Additive states of metrics, and the values that are computed from them."""

from __future__ import annotations

from lingo.metrics.metric import Accumulator, bits, mean, means, perplexity, weighted_mean

__all__ = ["Accumulator", "bits", "mean", "means", "perplexity", "weighted_mean"]
