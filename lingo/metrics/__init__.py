"""Metrics as additive states, and the numbers and pictures computed from them."""

from __future__ import annotations

from lingo.metrics.classification import confusion, score_counts, score_table, top_k_accuracy
from lingo.metrics.confusion_picture import confusion_image
from lingo.metrics.mean_average_precision import coco_detections, detection_table
from lingo.metrics.media import Audio, Histogram, Image, Table, Text, TokenIds
from lingo.metrics.metric import (
    Accumulator,
    bits,
    mean,
    means,
    perplexity,
    weighted_mean,
)
from lingo.metrics.results import read_state, state_summaries
from lingo.metrics.sample_picture import sample_image
from lingo.metrics.text import text_scores
from lingo.metrics.transcript import normalize_transcript, word_errors

__all__ = [
    "Accumulator",
    "Audio",
    "Histogram",
    "Image",
    "Table",
    "Text",
    "TokenIds",
    "bits",
    "coco_detections",
    "confusion",
    "confusion_image",
    "detection_table",
    "mean",
    "means",
    "normalize_transcript",
    "perplexity",
    "read_state",
    "sample_image",
    "score_counts",
    "score_table",
    "state_summaries",
    "text_scores",
    "top_k_accuracy",
    "weighted_mean",
    "word_errors",
]
