"""Media of a task as values of TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram.metadata import create_summary_metadata as histogram_metadata

from lingo.metrics.media import Histogram, Image, Media, Table, Text
from lingo.trainer.summaries import events

MAX_SIDE = 4096
"""The longest side of an image in pixels; of a longer one, the rest is cut off."""

_BUCKETS = 30


def media_summary(media: Mapping[str, Media | float]) -> Summary:
    """Returns Media and numbers, by tag, as one summary; histograms without values are left out."""
    return Summary(value=[_value(tag, one) for tag, one in media.items() if not _is_empty(one)])


def _is_empty(media: Media | float) -> bool:
    return isinstance(media, Histogram) and not media.finite().size


def _value(tag: str, media: Media | float) -> Summary.Value:
    match media:
        case Image():
            pixels = media.to_rgb()[:MAX_SIDE, :MAX_SIDE]
            return events.image_value(tag, pixels, legend=media.legend)
        case Histogram():
            return histogram_value(tag, media.finite())
        case Text():
            return events.text_value(tag, media.markdown)
        case Table():
            return events.text_value(tag, media.to_markdown())
        case _:
            return events.scalar_value(tag, float(media))


def histogram_value(tag: str, array: np.ndarray) -> Summary.Value:
    """Returns the histogram of an array, float of any shape, finite, not empty."""
    return events.tensor_value(tag, histogram(array), histogram_metadata("", ""))


def histogram(array: np.ndarray) -> np.ndarray:
    """Returns how many elements of an array are in each of 30 intervals of equal width.

    The array is float, of any shape, finite, not empty; the result float64 [30, 3]: left edge,
    right edge, count. (TensorBoard's own function needs 240 bytes of memory per element.)
    """
    ends = (np.float64(array.min()), np.float64(array.max()))  # their difference may not be float32
    counts, edges = np.histogram(array, bins=_BUCKETS, range=ends)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)
