"""Speech recognition by connectionist temporal classification (CTC, Graves et al. 2006).

Axes: B utterances, T frames, F features of a frame, T' frames of the encoder, D model width,
V labels with the blank, U labels of an utterance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.layers import context
from lingo.layers.inputs import CallInputs
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.learner.task import Batch, Task
from lingo.metrics.media import Image, Media
from lingo.metrics.metric import weighted_mean
from lingo.models.speech.conformer import ConformerEncoder
from lingo.ops import random
from lingo.ops.shape import size_of
from lingo.ops.speech.ctc import BLANK, Decoded, ctc_greedy, ctc_is_feasible, ctc_losses
from lingo.ops.speech.edit_distance import edit_distances
from lingo.ops.speech.spec_augment import SpecAugment

_MAX_PICTURES = 4  # utterances whose features are shown


class _Frames(NamedTuple):
    """What the encoder computes, as logits."""

    logits: tf.Tensor  # float32 [B, T', V]
    num_frames: tf.Tensor  # int32 [B]; later frames are padding


class CtcRecognition(Task):
    """CTC over the frames of an encoder; id 0, the padding of tokenizers, is the blank.

    The loss is in nats per label, averaged over the labels of the whole batch. An utterance whose
    labels need more frames than the encoder leaves, or that has the blank among its labels, counts
    neither in the loss nor in its average. Labels of a prediction are the ones of the likeliest
    path; an input with `scores_text=True` makes words of them.

    Metrics are `loss`; `label_error_rate`, the edits between labels and prediction per label, in
    percent; and `feasible`, the share of utterances that count in the loss.

    Batches: as `lingo.data.AudioInput` makes them.
    """

    # from features [B, T, F] to [B, T', D]; like ConformerEncoder it has `subsample`
    encoder: Layer = ConformerEncoder.params(output_dim=144)
    head: Linear = Linear.params(use_bias=True)  # from a frame to logits
    spec_augment: SpecAugment | None = None  # masks features in training; None: they stay
    feature_dim: int  # F; the input offers it
    vocab_size: int  # V, with the blank; the input offers it
    max_labels: int  # U, most labels of a prediction; the input offers it

    def check(self) -> None:
        ranges.check_positive(self.p, "feature_dim", "vocab_size", "max_labels")

    def setup(self) -> None:
        p = self.p
        self.encoder = p.encoder.build(dim=p.feature_dim)
        (*_, dim) = self.encoder.output_shape([1, 1, p.feature_dim])
        self.head = p.head.build(dim=dim, output_dim=p.vocab_size)
        self.augmenter = p.spec_augment and p.spec_augment.build()

    def check_input(self, offers: Mapping[str, Any]) -> None:
        for name in ("feature_dim", "vocab_size"):
            if name not in offers:
                raise ParamError(f"the input offers no {name}: take AudioInput")
            if offers[name] != getattr(self.p, name):
                raise ParamError(
                    f"task.{name}={getattr(self.p, name)}, but the input has {offers[name]}"
                )

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        return super().loss_denominators(batch) | {"ctc": tf.reduce_sum(self._label_weights(batch))}

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        weights = batch["weights"] * tf.cast(self._is_feasible(batch), tf.float32)
        return {"ctc": tf.reduce_sum(weights * self._losses(self._encode(batch), batch))}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        frames, weights = self._encode(batch), batch["weights"]
        num_labels = batch["num_labels"]
        per_label = 1.0 / tf.cast(tf.maximum(num_labels, 1), tf.float64)
        found = self._decode(frames)
        errors = edit_distances(batch["labels"], num_labels, found.labels, found.num_labels)
        losses = tf.cast(self._losses(frames, batch), tf.float64)
        every_label = weights * tf.cast(num_labels, tf.float32)
        return {
            "loss": weighted_mean(losses * per_label, self._label_weights(batch)),
            "label_error_rate": weighted_mean(
                100.0 * tf.cast(errors, tf.float64) * per_label, every_label
            ),
            "feasible": weighted_mean(self._is_feasible(batch), weights),
        }

    def loss_metrics(self) -> dict[str, str]:
        return {"ctc": "loss"}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns `labels`, int32 [B, U], padded with the blank, and `num_labels`, int32 [B]."""
        return self._decode(self._encode(batch))._asdict()

    def summaries(
        self, batch: Mapping[str, np.ndarray], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, Media | float]:
        """Returns a picture of features, time to the right; the input has the transcripts."""
        return {"features": Image(_pictures(batch["features"][:_MAX_PICTURES])[..., None])}

    def batch_flops(self, specs: Specs) -> int:
        shape, _ = specs["features"]
        return self.encoder.flops(shape) + self.head.flops(self.encoder.output_shape(shape))

    def _encode(self, batch: Batch) -> _Frames:
        """Returns the logits of a batch, augmented in training."""
        features, num_frames = batch["features"], batch["num_frames"]
        if self.augmenter is not None and context.current().training:
            keys = random.fold(self.random_key("spec_augment"), batch["rows"])
            features = self.augmenter(features, num_frames, keys)
        segments = _segments(batch)
        x = self.encoder(features, inputs=CallInputs(segments=segments))
        return _Frames(tf.cast(self.head(x), tf.float32), self._num_frames(batch))

    def _num_frames(self, batch: Batch) -> tf.Tensor:
        """Returns the number of the encoder's frames, int32 [B]."""
        kept = self.encoder.subsample(_segments(batch)) > 0
        return tf.reduce_sum(tf.cast(kept, tf.int32), axis=1)

    def _is_feasible(self, batch: Batch) -> tf.Tensor:
        """Returns whether some path gives an utterance's labels, bool [B]."""
        labels, num_labels = batch["labels"], batch["num_labels"]
        is_label = tf.sequence_mask(num_labels, size_of(labels, 1))
        has_blank = tf.reduce_any(is_label & tf.equal(labels, BLANK), axis=1)
        return ctc_is_feasible(labels, self._num_frames(batch), num_labels) & ~has_blank

    def _label_weights(self, batch: Batch) -> tf.Tensor:
        """Returns the number of labels that count in the loss, float32 [B]."""
        counts = tf.where(self._is_feasible(batch), batch["num_labels"], 0)
        return batch["weights"] * tf.cast(counts, tf.float32)

    def _losses(self, frames: _Frames, batch: Batch) -> tf.Tensor:
        """Returns nats per utterance, float32 [B]."""
        logits, num_frames = frames
        return ctc_losses(logits, batch["labels"], num_frames, batch["num_labels"]).losses

    def _decode(self, frames: _Frames) -> Decoded:
        """Returns the labels of the likeliest paths, at most U per utterance."""
        most = self.p.max_labels
        found = ctc_greedy(*frames)
        labels = tf.pad(found.labels, [[0, 0], [0, most]], constant_values=BLANK)[:, :most]
        return Decoded(labels, tf.minimum(found.num_labels, most))


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
