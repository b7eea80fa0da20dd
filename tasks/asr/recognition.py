"""Speech recognition: the part that all recognizers share. They differ after the encoder.

Axes: B utterances, T frames, F features of a frame, T' frames of the encoder, D model width,
V labels with the blank, U labels of an utterance, K hypotheses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.inputs import CallInputs
from lingo.layers.layer import Layer
from lingo.learner.task import Batch, Task
from lingo.metrics.media import Image, Media
from lingo.metrics.metric import weighted_mean
from lingo.models.speech.conformer import ConformerEncoder
from lingo.ops import random
from lingo.ops.shape import size_of
from lingo.ops.speech.ctc import BLANK, Decoded
from lingo.ops.speech.edit_distance import edit_distances
from lingo.ops.speech.spec_augment import SpecAugment

_MAX_PICTURES = 4  # utterances whose features are shown


class Encoded(NamedTuple):
    """The encoder's results for a batch."""

    frames: tf.Tensor  # [B, T', D], any float type
    segments: tf.Tensor  # int32 [B, T'], 1 in frames and 0 in padding
    num_frames: tf.Tensor  # int32 [B]


class Recognition(Task, interface=True):
    """An encoder of recordings, and a loss of their labels in nats per label.

    The loss is averaged over the labels of the whole batch. An utterance that is not feasible, such
    as one without frames, counts neither in the loss nor in its average. Metrics are `loss`;
    `label_error_rate`, the edits between labels and prediction per label, in percent; and
    `feasible`, the share of utterances that count in the loss. An input with `scores_text=True`
    makes words of predicted labels.

    Subclasses define `TERM`, `losses` and `decode_labels`, and call `setup` of this class first.

    Batches: as `lingo.data.AudioInput` makes them.
    """

    # from features [B, T, F] to [B, T', D]; like ConformerEncoder it has `subsample`
    encoder: Layer = ConformerEncoder.params(output_dim=144)
    spec_augment: SpecAugment | None = None  # masks features in training; None: they stay
    feature_dim: int  # F; the input offers it
    vocab_size: int  # V, with the blank; the input offers it
    max_labels: int  # U, most labels of a prediction; the input offers it

    TERM: ClassVar[str]
    """Name of the loss term."""

    def check(self) -> None:
        ranges.check_positive(self.p, "feature_dim", "vocab_size", "max_labels")

    def setup(self) -> None:
        p = self.p
        self.encoder = p.encoder.build(dim=p.feature_dim)
        self.augmenter = p.spec_augment and p.spec_augment.build()

    @property
    def encoder_dim(self) -> int:
        """D, the width of the encoder's frames."""
        return self.encoder.output_shape([1, 1, self.p.feature_dim])[-1]

    def check_input(self, offers: Mapping[str, Any]) -> None:
        for name in ("feature_dim", "vocab_size"):
            if name not in offers:
                raise ParamError(f"the input offers no {name}: take AudioInput")
            if offers[name] != getattr(self.p, name):
                raise ParamError(
                    f"task.{name}={getattr(self.p, name)}, but the input has {offers[name]}"
                )

    def losses(self, encoded: Encoded, batch: Batch) -> tf.Tensor:
        """Returns nats per utterance, float32 [B]."""
        raise self._missing_method("losses", "it returns nats per utterance, float32 [B]")

    def decode_labels(self, encoded: Encoded) -> Decoded:
        """Returns one hypothesis per utterance, of at most U labels, for `label_error_rate`."""
        raise self._missing_method("decode_labels", "it returns Decoded")

    def is_feasible(self, batch: Batch) -> tf.Tensor:
        """Returns whether an utterance counts in the loss, bool [B]."""
        return self.num_frames(batch) > 0

    def num_targets(self, batch: Batch) -> tf.Tensor:
        """Returns how many labels an utterance has in the loss, int32 [B]."""
        return batch["num_labels"]

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        weights = tf.reduce_sum(self.target_weights(batch))
        return super().loss_denominators(batch) | {self.TERM: weights}

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        weights = batch["weights"] * tf.cast(self.is_feasible(batch), tf.float32)
        return {self.TERM: tf.reduce_sum(weights * self.losses(self.encode(batch), batch))}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        encoded, num_labels = self.encode(batch), batch["num_labels"]
        found = self.decode_labels(encoded)
        errors = edit_distances(batch["labels"], num_labels, found.labels, found.num_labels)
        every_label = batch["weights"] * tf.cast(num_labels, tf.float32)
        return {
            "loss": self.mean_loss(self.losses(encoded, batch), batch),
            "label_error_rate": weighted_mean(
                100.0 * tf.cast(errors, tf.float64) / _at_least_one(num_labels), every_label
            ),
            "feasible": weighted_mean(self.is_feasible(batch), batch["weights"]),
        }

    def mean_loss(self, losses: tf.Tensor, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the state of the mean per label of losses per utterance, float32 [B]."""
        per_label = tf.cast(losses, tf.float64) / _at_least_one(self.num_targets(batch))
        return weighted_mean(per_label, self.target_weights(batch))

    def loss_metrics(self) -> dict[str, str]:
        return {self.TERM: "loss"}

    def summaries(
        self, batch: Mapping[str, np.ndarray], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        """Returns a picture of features, time to the right; the input has the transcripts."""
        return {"features": Image(_pictures(batch["features"][:_MAX_PICTURES])[..., None])}

    def encode(self, batch: Batch) -> Encoded:
        """Returns the encoder's frames of a batch, augmented in training."""
        features, num_frames = batch["features"], batch["num_frames"]
        if self.augmenter is not None and context.current().training:
            keys = random.fold(self.random_key("spec_augment"), batch["rows"])
            features = self.augmenter(features, num_frames, keys)
        segments = _segments(batch)
        frames = self.encoder(features, inputs=CallInputs(segments=segments))
        return Encoded(frames, self.encoder.subsample(segments), self.num_frames(batch))

    def num_frames(self, batch: Batch) -> tf.Tensor:
        """Returns the number of the encoder's frames, int32 [B]."""
        kept = self.encoder.subsample(_segments(batch)) > 0
        return tf.reduce_sum(tf.cast(kept, tf.int32), axis=1)

    def target_weights(self, batch: Batch) -> tf.Tensor:
        """Returns the number of labels that count in the loss, float32 [B]."""
        counts = tf.where(self.is_feasible(batch), self.num_targets(batch), 0)
        return batch["weights"] * tf.cast(counts, tf.float32)


def lacks_blank(batch: Batch) -> tf.Tensor:
    """Returns whether none of an utterance's labels is the blank, bool [B]."""
    labels = batch["labels"]
    is_label = tf.sequence_mask(batch["num_labels"], size_of(labels, 1))
    return ~tf.reduce_any(is_label & tf.equal(labels, BLANK), axis=1)


def _at_least_one(counts: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.maximum(counts, 1), tf.float64)


def _segments(batch: Batch) -> tf.Tensor:
    """Returns 1 in frames and 0 in padding, int32 [B, T]."""
    num_frames, length = batch["num_frames"], size_of(batch["features"], 1)
    return tf.sequence_mask(num_frames, length, dtype=tf.int32)


def _pictures(features: np.ndarray) -> np.ndarray:
    """Returns shades 0..1 of features, [N, F, T]: the lowest frequency is at the bottom."""
    low = features.min(axis=(1, 2), keepdims=True)
    high = features.max(axis=(1, 2), keepdims=True)
    shades = (features - low) / np.maximum(high - low, 1e-6)
    return shades.transpose(0, 2, 1)[:, ::-1]
